/* Options: order of strength, every kind of value, and errors that name the place and the cure. */
#include "support/check.h"

#include "base/opt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opts {
    const char *name, *mode;
    int count;
    int64_t size;
    double ratio;
    bool flag;
    hd_opt_list keys;
};

#define AT(f) offsetof(struct opts, f)
static const hd_opt_row rows[] = {
    {"the-name", 'm', HD_OPT_STR, AT(name), "x", 0, 0, NULL, "*", "NAME", "a name"},
    {"mode", 0, HD_OPT_STR, AT(mode), "a", 0, 0, "a|bc", "serve", "MODE", "a mode"},
    {"max-count", 'n', HD_OPT_INT, AT(count), "3", 1, 10, NULL, "serve run", "N", "a count"},
    {"size", 0, HD_OPT_SIZE, AT(size), "0", 0, 1e12, NULL, "serve", "N", "a size"},
    {"ratio", 0, HD_OPT_NUM, AT(ratio), "0.5", 0, 1, NULL, "serve", "F", "a ratio"},
    {"flag", 0, HD_OPT_BOOL, AT(flag), "false", 0, 0, NULL, "serve", "", "a flag"},
    {"key", 0, HD_OPT_LIST, AT(keys), NULL, 0, 0, NULL, "serve", "KEY", "keys"},
    {"runs", 0, HD_OPT_INT, AT(count), "3", 1, 10, NULL, "runner", "N", "elsewhere"},
    {"twice", 't', HD_OPT_INT, AT(count), "3", 1, 10, NULL, "runner", "N", "a count elsewhere"},
    {"twice", 't', HD_OPT_STR, AT(name), "x", 0, 0, NULL, "serve", "NAME", "a name here"},
};
static const char *const ignored[] = {"HADAL_TEST_*", "HADAL_EXACT_NAME", NULL};

static hd_opt_table table(void) {
    return (hd_opt_table){.row = rows,
                          .n_row = HD_COUNT_OF(rows),
                          .command = "serve",
                          .env_prefix = "HADAL_",
                          .env_ignored = ignored,
                          .arena = hd_arena_new(256)};
}

static hd_status read_file_text(const hd_opt_table *t, struct opts *o, const char *text) {
    char path[] = "/tmp/hadal-opt-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs(text, f);
    fclose(f);
    hd_status s = hd_opt_read_file(t, o, path);
    remove(path);
    return s;
}

static void order_of_strength(void **state) {
    (void)state;
    hd_opt_table t = table();
    struct opts o = {0};
    hd_opt_defaults(&t, &o);
    assert_string_equal(o.name, "x");
    assert_int_equal(o.count, 3);
    assert_ok(
        read_file_text(&t, &o, "the_name: from file\nmax-count: 4\nkey: [a, b]\nflag: yes\n"));
    assert_string_equal(o.name, "from file");
    assert_int_equal(o.keys.n, 2);
    assert_true(o.flag);
    char *env[] = {
        "PATH=/bin",          "HADAL_THE_NAME=env",           "HADAL_KEY=c", "HADAL_TEST_ANY=1",
        "HADAL_EXACT_NAME=2", "HADAL_PORT=tcp://10.0.0.1:80", NULL};
    assert_ok(hd_opt_read_env(&t, &o, env));
    assert_string_equal(o.name, "env");
    assert_int_equal(o.keys.n, 1);
    char *arg[] = {"pos", "--the-name=flag", "--key", "d", "--key=e", "--no-flag", "-n7", "--",
                   "-x"};
    int n = HD_COUNT_OF(arg);
    assert_ok(hd_opt_read_args(&t, &o, &n, arg));
    assert_int_equal(n, 2);
    assert_string_equal(arg[1], "-x");
    assert_string_equal(o.name, "flag");
    assert_int_equal(o.keys.n, 2);
    assert_string_equal(o.keys.item[1], "e");
    assert_false(o.flag);
    assert_int_equal(o.count, 7);
    hd_arena_free(t.arena);
}

static void refused(const char *arg0, const char *arg1, const char *words) {
    hd_opt_table t = table();
    struct opts o = {0};
    hd_opt_defaults(&t, &o);
    char a[64], b[64];
    snprintf(a, sizeof a, "%s", arg0);
    snprintf(b, sizeof b, "%s", arg1 ? arg1 : "");
    char *arg[] = {a, b};
    int n = arg1 ? 2 : 1;
    assert_int_equal(hd_opt_read_args(&t, &o, &n, arg), HD_E_INVALID);
    if (!strstr(hd_error_text(), words)) fail_msg("'%s' lacks '%s'", hd_error_text(), words);
    hd_arena_free(t.arena);
}

static void flags_are_checked(void **state) {
    (void)state;
    refused("--max-cuont", "3", "did you mean '--max-count'");
    refused("--max-count", "eleven", "--max-count: expected a whole number, found 'eleven'");
    refused("--max-count", "11", "[1, 10], found 11");
    refused("--max-count", "2.5", "whole number");
    refused("--max-count", NULL, "expected a value (N)");
    refused("--mode", "d", "one of a|bc");
    refused("--flag=maybe", NULL, "true or false");
    refused("--runs", "1", "not an option of 'hadal serve'");
    refused("--ratio", "nan", "expected a number");
    refused("--ratio", "0x1p-1", "expected a number");
    refused("-q", NULL, "unknown option '-q'");
    refused("--size", "1.5X", "whole number");
}

/* A flag of several commands is this one's, wherever it is named. */
static void flags_of_several_commands(void **state) {
    (void)state;
    hd_opt_table t = table();
    struct opts o = {0};
    hd_opt_defaults(&t, &o);
    assert_ok(read_file_text(&t, &o, "twice: filed\n"));
    assert_string_equal(o.name, "filed");
    char *env[] = {"HADAL_TWICE=env", NULL};
    assert_ok(hd_opt_read_env(&t, &o, env));
    assert_string_equal(o.name, "env");
    char *arg[] = {"--twice", "long"}, *short_arg[] = {"-tshort"};
    int n = 2, n_short = 1;
    assert_ok(hd_opt_read_args(&t, &o, &n, arg));
    assert_string_equal(o.name, "long");
    assert_ok(hd_opt_read_args(&t, &o, &n_short, short_arg));
    assert_string_equal(o.name, "short");
    assert_int_equal(o.count, 3);
    t.command = "runner";
    char *other[] = {"--twice=7"};
    n = 1;
    assert_ok(hd_opt_read_args(&t, &o, &n, other));
    assert_int_equal(o.count, 7);
    hd_arena_free(t.arena);
}

static void sizes_take_units(void **state) {
    (void)state;
    hd_opt_table t = table();
    struct opts o = {0};
    hd_opt_defaults(&t, &o);
    char *arg[] = {"--size", "1.5KiB"};
    int n = 2;
    assert_ok(hd_opt_read_args(&t, &o, &n, arg));
    assert_int_equal(o.size, 1536);
    hd_arena_free(t.arena);
}

static void file_refused(const char *text, const char *words) {
    hd_opt_table t = table();
    struct opts o = {0};
    hd_opt_defaults(&t, &o);
    assert_int_equal(read_file_text(&t, &o, text), HD_E_INVALID);
    if (!strstr(hd_error_text(), words)) fail_msg("'%s' lacks '%s'", hd_error_text(), words);
    hd_arena_free(t.arena);
}

static void files_are_checked(void **state) {
    (void)state;
    file_refused("flag: true\nmaxcount: 3\n",
                 ":2: unknown option 'maxcount'; did you mean 'max-count'");
    file_refused("flag: true\nflag: true\n", "given twice");
    file_refused("flag: &a true\n", "anchors");
    file_refused("- a\n", "expected lines");
    file_refused("max-count: [1]\n", ":1: max-count: expected one value");
    file_refused("flag: true\nmax-count: x\n", ":2: max-count: expected a whole number");
    file_refused("key: [[a]]\n", "plain values");
    file_refused("flag: {a: b}\n", "expected one value");
    file_refused("flag: [\n", ":");
    hd_opt_table t = table();
    struct opts o = {0};
    assert_int_equal(hd_opt_read_file(&t, &o, "/no/such/file"), HD_E_INVALID);
    hd_opt_defaults(&t, &o);
    assert_ok(read_file_text(&t, &o, "# only a comment\n"));
    char *env[] = {"HADAL_MAXCOUNT=3", NULL};
    assert_int_equal(hd_opt_read_env(&t, &o, env), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "HADAL_MAXCOUNT"));
    hd_arena_free(t.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_strength),         cmocka_unit_test(flags_are_checked),
        cmocka_unit_test(flags_of_several_commands), cmocka_unit_test(sizes_take_units),
        cmocka_unit_test(files_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
