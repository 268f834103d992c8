/* Running the built program from a C test: spawn, redirect, wait. */
#include "support/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARG_MAX_N = 32 };

int test_run_program(const char *const *arg, const char *out) {
    char *argv[ARG_MAX_N + 2] = {getenv("HADAL_BIN")};
    if (argv[0] == NULL) return -1;
    for (int i = 0; arg[i] != NULL && i < ARG_MAX_N; i++) argv[i + 1] = (char *)(uintptr_t)arg[i];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    pid_t pid;
    int status = -1, failed = posix_spawn(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}
