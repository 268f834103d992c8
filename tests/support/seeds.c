/* Seeded tests: see seeds.h. */
#include "support/seeds.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long first = 1, n_seed;
static char line[200] = "no seed ran\n";

static void on_abort(int signal_number) {
    (void)signal_number;
    if (write(2, line, strlen(line)) < 0) _exit(3);
}

static const char *program = "test";

void seeds_init(int argc, char **argv, long n_default) {
    const char *env = getenv("HADAL_SIM_SEEDS");
    n_seed = env ? strtol(env, NULL, 10) : n_default;
    program = argv[0];
    if (argc > 1) {
        first = strtol(argv[1], NULL, 10);
        n_seed = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
    }
    struct sigaction action = {.sa_handler = on_abort};
    sigaction(SIGABRT, &action, NULL);
}

void seeds_run(void (*run)(uint64_t seed, void *user), void *user) {
    for (long i = 0; i < n_seed; i++) {
        snprintf(line, sizeof line, "repeat with: %s %ld\n", program, first + i);
        run((uint64_t)(first + i), user);
    }
}

long seeds_count(void) { return n_seed; }

int seeds_end(int n_failed) {
    if (n_failed > 0) fputs(line, stderr);
    return n_failed;
}
