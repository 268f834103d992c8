/* Options from one table: default < YAML file < environment < flag.
 *
 * A row says everything: field, flag, kind, default, bounds, commands, help. Parsing, --help, and
 * the errors (unknown key with "did you mean", what was expected, what was found, and where it
 * stood) all come from it. The environment name of --max-num-seqs is HADAL_MAX_NUM_SEQS; the file's
 * key is max-num-seqs or max_num_seqs. Commands that mean different things by one flag have a row
 * of it each. Thread: used at start, by one thread. */
#ifndef HD_BASE_OPT_H
#define HD_BASE_OPT_H

#include "base/buf.h"
#include "base/mem.h"

enum hd_opt_kind { HD_OPT_STR, HD_OPT_INT, HD_OPT_SIZE, HD_OPT_NUM, HD_OPT_BOOL, HD_OPT_LIST };

enum { HD_OPT_LIST_MAX = 32 };
/* A repeatable option's values, in order. A stronger source replaces a weaker one's whole list. */
typedef struct hd_opt_list {
    const char *item[HD_OPT_LIST_MAX];
    int n;
} hd_opt_list;

typedef struct hd_opt_row {
    const char *flag;      /* without the dashes */
    char letter;           /* short form, or 0 */
    enum hd_opt_kind kind; /* STR const char *, INT int, SIZE int64_t, NUM double, BOOL bool */
    size_t offset;         /* of the field in the options struct */
    const char *initial;   /* default, as text; NULL: unset (STR) or empty (LIST) */
    double min, max;       /* INT, SIZE, NUM */
    const char *choices;   /* STR: "a|b|c", or NULL: any */
    const char *commands;  /* "serve run": where it applies; "*": everywhere */
    const char *placeholder, *help;
} hd_opt_row;

typedef struct hd_opt_table {
    const hd_opt_row *row;
    int n_row;
    const char *command;            /* only rows of this command are accepted and shown */
    const char *env_prefix;         /* "HADAL_" */
    const char *const *env_ignored; /* names or prefixes ending in '*', NULL-terminated */
    hd_arena *arena;                /* keeps the strings */
} hd_opt_table;

void hd_opt_defaults(const hd_opt_table *t, void *options);
/* Each sets what its source names. HD_E_INVALID with the place (file:line, variable or flag). */
HD_MUST_CHECK hd_status hd_opt_read_file(const hd_opt_table *t, void *options, const char *path);
HD_MUST_CHECK hd_status hd_opt_read_env(const hd_opt_table *t, void *options, char **env);
/* Removes what it understands from arg: the positional arguments are left, *n_arg of them.
 * "--" ends the flags. */
HD_MUST_CHECK hd_status hd_opt_read_args(const hd_opt_table *t, void *options, int *n_arg,
                                         char **arg);
/* The flags of the command as an aligned list. */
void hd_opt_help(const hd_opt_table *t, hd_buf *out);

/* The candidate nearest to word by edit distance when it is near enough to be meant, else NULL. */
const char *hd_nearest(const char *word, const char *const *candidate, size_t n);

#endif
