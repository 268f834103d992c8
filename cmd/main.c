/* hadal's entry: finds the subcommand, reads its options, runs it. */
#include "base/log.h"
#include "base/version.h"
#include "cmd/command.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* NULL-terminated, so that it may be empty. */
static const struct hd_command *const commands[] = {
#define HD_COMMAND(name) &hd_cmd_##name,
#include "cmd/commands.def"
#undef HD_COMMAND
    NULL};
enum { n_command = HD_COUNT_OF(commands) - 1 };

#define AT(field) offsetof(struct hd_options, field)
static const hd_opt_row option_rows[] = {
#define STR(field, flag, letter, initial, choices, commands, placeholder, help)                    \
    {flag, letter, HD_OPT_STR, AT(field), initial, 0, 0, choices, commands, placeholder, help},
#define INT(field, flag, letter, initial, min, max, commands, placeholder, help)                   \
    {flag, letter, HD_OPT_INT, AT(field), initial, min, max, NULL, commands, placeholder, help},
#define SIZE(field, flag, letter, initial, min, max, commands, placeholder, help)                  \
    {flag, letter, HD_OPT_SIZE, AT(field), initial, min, max, NULL, commands, placeholder, help},
#define NUM(field, flag, letter, initial, min, max, commands, placeholder, help)                   \
    {flag, letter, HD_OPT_NUM, AT(field), initial, min, max, NULL, commands, placeholder, help},
#define BOOL(field, flag, letter, initial, commands, help)                                         \
    {flag, letter, HD_OPT_BOOL, AT(field), initial, 0, 0, NULL, commands, "", help},
#define LIST(field, flag, letter, commands, placeholder, help)                                     \
    {flag, letter, HD_OPT_LIST, AT(field), NULL, 0, 0, NULL, commands, placeholder, help},
#include "cmd/options.def"
#undef STR
#undef INT
#undef SIZE
#undef NUM
#undef BOOL
#undef LIST
};

/* Variables with our prefix that are not options: Kubernetes' service links, and the tests' own. */
static const char *const env_ignored[] = {"HADAL_SERVICE_*",
                                          "HADAL_PORT_*",
                                          "HADAL_TEST_*",
                                          "HADAL_SOURCE_DIR",
                                          "HADAL_BUILD_DIR",
                                          "HADAL_BIN",
                                          NULL};

static int wrong_usage(const struct hd_command *c) {
    fprintf(stderr, "Usage: hadal %s %s\nTry 'hadal %s --help'.\n", c->name, c->usage, c->name);
    return 2;
}

int hd_command_error(const struct hd_command *c) {
    fprintf(stderr, "hadal %s: %s\n", c->name, hd_error_text());
    return hd_error_status() == HD_E_INVALID ? wrong_usage(c) : 1;
}

int hd_command_usage(const struct hd_command *c, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "hadal %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    return wrong_usage(c);
}

static void print_overview(FILE *to) {
    fprintf(to,
            "hadal %s: inference server for DeepSeek models\n\nUsage: hadal COMMAND [options]\n\n",
            HD_VERSION);
    for (int i = 0; i < n_command; i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "\n'hadal COMMAND --help' explains one. Start with: hadal serve\n"
                "Options come from a YAML file (--config), then HADAL_* variables, then flags.\n");
}

static void print_help(const struct hd_command *c, const hd_opt_table *table) {
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_opt_help(table, &b);
    printf("hadal %s: %s\n\nUsage: hadal %s %s\n\n%s\nOptions:\n%s", c->name, c->summary, c->name,
           c->usage, c->details, b.len ? b.ptr : "");
    printf("      --help                               this text\n\n"
           "Each option is also a key of the --config file and a variable, HADAL_ and its name in\n"
           "capitals: --log-level warn is log-level: warn and HADAL_LOG_LEVEL=warn.\n"
           "Order of strength: default < file < environment < flag.\n");
    hd_buf_fini(&b);
}

static const struct hd_command *find_command(const char *name) {
    for (int i = 0; i < n_command; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[n_command + 1];
    for (int i = 0; i < n_command; i++) names[i] = commands[i]->name;
    const char *near = hd_nearest(name, names, n_command);
    fprintf(stderr, "hadal: unknown command '%s'", name);
    if (near) fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "\n'hadal --help' lists them.\n");
    return 2;
}

/* The config file's name must be known before the other flags are read. */
static const char *config_path(int n_arg, char **arg, char **env) {
    const char *path = NULL;
    for (; *env; env++)
        if (strncmp(*env, "HADAL_CONFIG=", 13) == 0) path = *env + 13;
    for (int i = 0; i < n_arg && strcmp(arg[i], "--") != 0; i++) {
        if (strncmp(arg[i], "--config=", 9) == 0) path = arg[i] + 9;
        if (strcmp(arg[i], "--config") == 0 && i + 1 < n_arg) path = arg[i + 1];
    }
    return path;
}

static hd_status read_options(const hd_opt_table *table, struct hd_options *o, int *n_arg,
                              char **arg) {
    hd_opt_defaults(table, o);
    const char *path = config_path(*n_arg, arg, environ);
    if (path && *path) HD_TRY(hd_opt_read_file(table, o, path));
    HD_TRY(hd_opt_read_env(table, o, environ));
    return hd_opt_read_args(table, o, n_arg, arg);
}

static void set_log(const struct hd_command *c, const struct hd_options *o) {
    static const char *const levels[] = {"debug", "info", "warn", "error", "off"};
    for (size_t i = 0; i < HD_COUNT_OF(levels); i++)
        if (strcmp(o->log_level, levels[i]) == 0) hd_log_set_level((enum hd_log_level)i);
    if (hd_log_get_level() == HD_LOG_INFO && !c->is_server) hd_log_set_level(HD_LOG_WARN);
    bool is_auto = strcmp(o->log_format, "auto") == 0;
    hd_log_set_plain(is_auto ? isatty(STDERR_FILENO) : strcmp(o->log_format, "plain") == 0);
}

static bool wants_help(int n_arg, char **arg) {
    for (int i = 0; i < n_arg && strcmp(arg[i], "--") != 0; i++)
        if (strcmp(arg[i], "--help") == 0 || strcmp(arg[i], "-h") == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("hadal %s\n", HD_VERSION);
        return 0;
    }
    const struct hd_command *c = find_command(argv[1]);
    if (!c) return unknown_command(argv[1]);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is a write that fails, and says so */
    int n_arg = argc - 2;
    char **arg = argv + 2;
    hd_opt_table table = {.row = option_rows,
                          .n_row = (int)HD_COUNT_OF(option_rows),
                          .command = c->name,
                          .env_prefix = "HADAL_",
                          .env_ignored = env_ignored,
                          .arena = hd_arena_new(4096)};
    struct hd_options o;
    memset(&o, 0, sizeof o);
    int rc = 0;
    if (wants_help(n_arg, arg)) {
        print_help(c, &table);
    } else if (read_options(&table, &o, &n_arg, arg) != HD_OK) {
        rc = hd_command_error(c);
    } else {
        set_log(c, &o);
        rc = c->run(&o, n_arg, arg);
    }
    if (ferror(stdout) || fflush(stdout) != 0) {
        fprintf(stderr, "hadal %s: stdout cannot be written\n", c->name);
        rc = 1;
    }
    hd_arena_free(table.arena);
    return rc;
}
