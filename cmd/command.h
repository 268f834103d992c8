/* A subcommand: one file cmd_<name>.c, one row in commands.def, its options as rows in options.def.
 *
 * main.c parses the options (default < --config file < HADAL_* environment < flag), sets the log,
 * and calls run with the positional arguments. run returns the exit code: 0 done, 1 failed, 2 wrong
 * usage, however late it is found: what an option or an argument says, or the file it names, is
 * nothing that the command can work with (HD_E_INVALID). Both are told by hd_command_error. */
#ifndef HD_CMD_COMMAND_H
#define HD_CMD_COMMAND_H

#include "base/opt.h"
#include "dev/dev.h"
#include "hadal.h"

struct hd_options {
#define STR(field, flag, letter, initial, choices, commands, placeholder, help) const char *field;
#define INT(field, flag, letter, initial, min, max, commands, placeholder, help) int field;
#define SIZE(field, flag, letter, initial, min, max, commands, placeholder, help) int64_t field;
#define NUM(field, flag, letter, initial, min, max, commands, placeholder, help) double field;
#define BOOL(field, flag, letter, initial, commands, help) bool field;
#define LIST(field, flag, letter, commands, placeholder, help) hd_opt_list field;
#include "cmd/options.def"
#undef STR
#undef INT
#undef SIZE
#undef NUM
#undef BOOL
#undef LIST
};

struct hd_command {
    const char *name, *summary; /* summary: one line of the command list */
    const char *usage;          /* "[options] PATH" */
    const char *details;        /* paragraphs and examples of --help; ends in a newline */
    int (*run)(const struct hd_options *o, int n_arg, char **arg);
    bool is_server; /* its log tells what is normal, too */
};

#define HD_COMMAND(name) extern const struct hd_command hd_cmd_##name;
#include "cmd/commands.def"
#undef HD_COMMAND

/* Prints "hadal NAME: " and this thread's error text to stderr; returns the exit code. */
int hd_command_error(const struct hd_command *c);
/* Prints what is wrong with the usage and how to get help; returns 2. */
int hd_command_usage(const struct hd_command *c, const char *fmt, ...) HD_PRINTF(2, 3);

/* How long a server times steps at its start; a simulated one does the same. */
enum { HD_MEASURE_MS = 500 };

/* The engine's configuration from the options (pointers borrowed from o). A progress bar is shown
 * while loading when stderr is a terminal. */
void hd_engine_config_from(const struct hd_options *o, hd_engine_config *c);
/* What --slo promises, over what is there. HD_E_INVALID names the one that is wrong. */
HD_MUST_CHECK hd_status hd_service_targets_from(const struct hd_options *o,
                                                hd_service_target target[HD_SERVICE_COUNT]);

/* The device's configuration from the options, for commands that run a model without an engine.
 */
HD_MUST_CHECK hd_status hd_dev_config_from(const struct hd_options *o, hd_dev_config *c);

/* A progress bar on stderr when it is a terminal; nothing otherwise. done in [0, 1]; 1 ends it. */
void hd_progress(void *unused, const char *what, double done);

/* The same for hd_model_open. */
void hd_load_progress(void *unused, int done, int all);
/* The same bar of hd_checkpoint_hash. */
void hd_hash_progress(void *unused, uint64_t done, uint64_t all);

#endif
