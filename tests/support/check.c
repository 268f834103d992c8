/* Finding and reading test data. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>

const char *test_path(const char *relative) {
    static char ring[8][4096];
    static unsigned next;
    char *p = ring[next++ % 8];
    const char *root = getenv("HADAL_SOURCE_DIR");
    snprintf(p, sizeof ring[0], "%s/%s", root ? root : ".", relative);
    return p;
}

char *test_read_file(const char *path, size_t *n_byte) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *p = malloc((size_t)n + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)n, f), n);
    fclose(f);
    p[n] = 0;
    if (n_byte) *n_byte = (size_t)n;
    return p;
}
