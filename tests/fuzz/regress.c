/* Regression driver for the fuzz targets: replays every file of a corpus folder, then seeded
 * mutations of each (flips, cuts, splices), so that the targets run everywhere, without libFuzzer.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { file_bytes_max = 1 << 20, mutations_per_file = 200 };

static uint64_t seed = 0x9E3779B97F4A7C15u;

static uint64_t next_random(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Runs on an exact-size heap copy so that a sanitizer sees reads past the end. */
static void run_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_mutated(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size + 64);
    if (!copy) abort();
    memcpy(copy, data, size);
    size_t n = size;
    for (uint64_t edits = 1 + next_random() % 4; edits > 0 && n > 0; edits--) {
        size_t at = (size_t)(next_random() % n);
        switch (next_random() % 5) {
        case 0: copy[at] ^= (uint8_t)(1u << (next_random() % 8)); break;
        case 1: copy[at] = (uint8_t)next_random(); break;
        case 2: copy[at] = (next_random() & 1) ? 0xFF : 0; break;
        case 3: n = at; break;
        default:
            if (n < size + 63) {
                memmove(copy + at + 1, copy + at, n - at);
                n++;
            }
        }
    }
    run_copy(copy, n);
    free(copy);
}

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    uint8_t *data = malloc(file_bytes_max);
    if (!data) abort();
    size_t n = fread(data, 1, file_bytes_max, f);
    fclose(f);
    run_copy(data, n);
    for (int i = 0; i < mutations_per_file; i++) run_mutated(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        fprintf(stderr, "no corpus folder %s\n", argv[1]);
        return 1;
    }
    int n_file = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (run_file(path) == 0) n_file++;
    }
    closedir(dir);
    run_copy((const uint8_t *)"", 0);
    printf("%d corpus files, %d mutations each: no fault\n", n_file, mutations_per_file);
    return n_file > 0 ? 0 : 1;
}
