/* Image files: what was written is found, aligned; one that is wrong, cut or another's is refused
 * with a line; a failed writing leaves nothing. */
#include "support/check.h"

#include "base/mem.h"
#include "file/image.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[96];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hadal-image-XXXXXX");
    snprintf(path, sizeof path, "%s/one.image", mkdtemp(folder));
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int n_file(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static double last_share;
static void on_progress(void *user, double done) {
    (void)user;
    assert_true(done >= last_share && done <= 1);
    last_share = done;
}

static unsigned char small[100], large[9 << 20]; /* more than one write */

static void write_one(void) {
    for (size_t i = 0; i < sizeof large; i++) large[i] = (unsigned char)(i * 2654435761u >> 24);
    memset(small, 7, sizeof small);
    hd_image_block block[] = {{.name = "b.weight", .ptr = large, .n_byte = sizeof large},
                              {.name = "a.weight", .ptr = small, .n_byte = sizeof small}};
    last_share = 0;
    assert_ok(hd_image_write(path, "key", block, 2, on_progress, NULL));
    assert_true(last_share == 1);
}

static void found_again(void **state) {
    (void)state;
    hd_image *im;
    write_one();
    assert_ok(hd_image_open(path, "key", &im));
    const void *a = hd_image_find(im, "a.weight", sizeof small);
    const void *b = hd_image_find(im, "b.weight", sizeof large);
    assert_non_null(a);
    assert_non_null(b);
    assert_memory_equal(a, small, sizeof small);
    assert_memory_equal(b, large, sizeof large);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % (2 << 20), 0); /* the first block, and so the mapping */
    assert_null(hd_image_find(im, "a.weight", sizeof small + 1));
    assert_null(hd_image_find(im, "c.weight", sizeof small));
    hd_image_close(im);
}

static void refused(const char *key, hd_status expected, const char *words) {
    hd_image *im;
    assert_int_equal(hd_image_open(path, key, &im), expected);
    assert_null(im);
    if (!strstr(hd_error_text(), words)) fail_msg("'%s' lacks '%s'", hd_error_text(), words);
    assert_null(strchr(hd_error_text(), '\n'));
}

static void overwrite(off_t at, unsigned char byte) {
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void wrong_ones_are_refused(void **state) {
    (void)state;
    unlink(path);
    refused("key", HD_E_NOT_FOUND, "no such file");
    write_one();
    refused("other", HD_E_CORRUPT, "expected one of other, found key");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    refused("key", HD_E_CORRUPT, "found");
    assert_int_equal(truncate(path, 10), 0);
    refused("key", HD_E_CORRUPT, "bytes or more, found 10");
    assert_int_equal(truncate(path, 0), 0);
    refused("key", HD_E_CORRUPT, "found 0");
    write_one();
    overwrite(0, 'x');
    refused("key", HD_E_CORRUPT, "expected an image of version 1");
    write_one();
    overwrite(100, 'x'); /* a name, or a place */
    refused("key", HD_E_CORRUPT, "sum of its head");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused("key", HD_E_IO, "regular file");
    rmdir(path);
}

static void no_half_is_left(void **state) {
    (void)state;
    char nowhere[128];
    hd_image_block block = {.name = "a", .ptr = small, .n_byte = sizeof small};
    snprintf(nowhere, sizeof nowhere, "%s/none/one.image", folder);
    assert_int_equal(hd_image_write(nowhere, "key", &block, 1, NULL, NULL), HD_E_IO);
    assert_int_equal(mkdir(path, 0700), 0); /* the rename fails */
    assert_int_equal(hd_image_write(path, "key", &block, 1, NULL, NULL), HD_E_IO);
    rmdir(path);
    struct rlimit before, little = {.rlim_cur = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little); /* as a full disk */
    hd_status s = hd_image_write(path, "key", &block, 1, NULL, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(s, HD_E_IO);
    assert_non_null(strstr(hd_error_text(), "File too large"));
    assert_int_equal(n_file(), 0);
}

static void too_many_blocks_are_refused(void **state) {
    (void)state;
    enum { N = (1 << 14) + 1 };
    hd_image_block *block = calloc(N, sizeof *block);
    assert_non_null(block);
    for (int i = 0; i < N; i++) snprintf(block[i].name, sizeof block[i].name, "%d", i);
    assert_int_equal(hd_image_write(path, "key", block, N, NULL, NULL), HD_E_UNSUPPORTED);
    assert_non_null(strstr(hd_error_text(), "at most 16384 blocks, found 16385"));
    assert_int_equal(n_file(), 0);
    assert_ok(hd_image_write(path, "key", block, N - 1, NULL, NULL));
    hd_image *im;
    assert_ok(hd_image_open(path, "key", &im));
    hd_image_close(im);
    unlink(path);
    free(block);
}

static void count_names(void *user, double done) { *(int *)user += done < 1 ? n_file() : 0; }

/* What a kill amid it would leave: no file that nobody ever removes. */
static void it_has_no_name_before_it_is_whole(void **state) {
    (void)state;
    int fd = open(folder, O_TMPFILE | O_WRONLY, 0600), n_seen = 0;
    unlink(path);
    if (fd < 0) {
        print_message("skipped: %s has no files without a name\n", folder);
        skip();
    }
    close(fd);
    hd_image_block block = {.name = "a", .ptr = large, .n_byte = sizeof large};
    assert_ok(hd_image_write(path, "key", &block, 1, count_names, &n_seen));
    assert_int_equal(n_seen, 0);
    assert_int_equal(n_file(), 1);
    assert_ok(hd_image_write(path, "key", &block, 1, NULL, NULL)); /* in place of the first */
    assert_int_equal(n_file(), 1);
}

static void *write_often(void *arg) {
    static const hd_image_block block = {.name = "a", .ptr = small, .n_byte = sizeof small};
    hd_status *s = arg;
    for (int i = 0; i < 20 && *s == HD_OK; i++)
        *s = hd_image_write(path, "key", &block, 1, NULL, NULL);
    return NULL;
}

/* As servers that start side by side do: each one's is whole, and the last one stays. */
static void several_write_at_once(void **state) {
    (void)state;
    enum { N = 4 };
    pthread_t thread[N];
    hd_status s[N] = {HD_OK};
    hd_image *im;
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_often, &s[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) assert_int_equal(s[i], HD_OK);
    assert_int_equal(n_file(), 1);
    assert_ok(hd_image_open(path, "key", &im));
    hd_image_close(im);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_again),
        cmocka_unit_test(wrong_ones_are_refused),
        cmocka_unit_test(no_half_is_left),
        cmocka_unit_test(too_many_blocks_are_refused),
        cmocka_unit_test(it_has_no_name_before_it_is_whole),
        cmocka_unit_test(several_write_at_once),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
