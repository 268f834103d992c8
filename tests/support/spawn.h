/* Running the built program from a C test. */
#ifndef HD_TEST_SPAWN_H
#define HD_TEST_SPAWN_H

/* Runs HADAL_BIN with the arguments (arg[0] is the subcommand; ends in NULL), standard output into
 * the file `out`, and waits. Returns the exit code, or -1 when it did not start or was killed. */
int test_run_program(const char *const *arg, const char *out);

#endif
