/* suggestion: what a model's files say of sampling, in both kinds of files; what cannot be is
 * named. */
#include "file/suggestion.h"
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static hd_status read_folder(const char *json, hd_suggestion *out) {
    hd_buf b;
    hd_checkpoint *c;
    hd_buf_init(&b, 4096);
    test_safetensors(&b, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    test_write_file(test_join(test_dir, "model.safetensors"), b.ptr, b.len);
    test_write_text(test_join(test_dir, "config.json"), "{}");
    if (json) test_write_text(test_join(test_dir, "generation_config.json"), json);
    hd_buf_fini(&b);
    assert_ok(hd_checkpoint_open(test_dir, &c));
    hd_status s = hd_suggestion_read(c, out);
    hd_checkpoint_close(c);
    return s;
}

static void folders(void **state) {
    (void)state;
    static const struct {
        const char *json, *wrong; /* wrong: what the error names */
        double temperature, top_p;
        int top_k;
    } rows[] = {
        {NULL, NULL, -1, -1, -1},
        {"{}", NULL, -1, -1, -1},
        {"{\"temperature\":0.6,\"top_p\":0.95}", NULL, -1, -1, -1}, /* not to be sampled */
        {"{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95}", NULL, 0.6, 0.95, -1},
        {"{\"do_sample\":true,\"temperature\":1,\"top_k\":20}", NULL, 1, -1, 20},
        {"{\"do_sample\":true,\"top_k\":-1}", NULL, -1, -1, 0},
        {"{\"do_sample\":true,\"temperature\":null}", NULL, -1, -1, -1},
        {"{\"do_sample\":true,\"temperature\":-1}",
         "generation_config.json: temperature: expected 0 to 100, found -1", 0, 0, 0},
        {"{\"do_sample\":true,\"top_p\":1.5}",
         "generation_config.json: top_p: expected 0 to 1, found 1.5", 0, 0, 0},
        {"{\"do_sample\":true,\"top_k\":1e10}", "generation_config.json: top_k: expected", 0, 0, 0},
        {"{\"do_sample\":", "generation_config.json", 0, 0, 0},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        hd_suggestion s;
        hd_status status = read_folder(rows[i].json, &s);
        if (rows[i].wrong) {
            assert_int_equal(status, HD_E_CORRUPT);
            if (!strstr(hd_error_text(), rows[i].wrong)) fail_msg("%s", hd_error_text());
            continue;
        }
        assert_ok(status);
        if (s.temperature != rows[i].temperature || s.top_p != rows[i].top_p ||
            s.top_k != rows[i].top_k)
            fail_msg("row %zu: %g %g %d", i, s.temperature, s.top_p, s.top_k);
    }
}

static hd_status read_gguf(float temperature, hd_suggestion *out) {
    hd_buf b;
    hd_checkpoint *c;
    const uint64_t ne[1] = {1};
    const char *path = test_join(test_dir, "m.gguf");
    hd_buf_init(&b, 4096);
    test_gguf_head(&b, 3, 1, 4);
    test_gguf_key_str(&b, "general.architecture", "llama");
    test_gguf_key_f32(&b, "general.sampling.temp", temperature);
    test_gguf_key_f32(&b, "general.sampling.top_p", 0.5f);
    test_gguf_key_u32(&b, "general.sampling.top_k", 7);
    test_gguf_tensor(&b, "a", 1, ne, 0, 0);
    test_pad(&b, 32);
    test_zeros(&b, 32);
    test_write_file(path, b.ptr, b.len);
    hd_buf_fini(&b);
    assert_ok(hd_checkpoint_open(path, &c));
    hd_status s = hd_suggestion_read(c, out);
    hd_checkpoint_close(c);
    return s;
}

static void gguf_files(void **state) {
    (void)state;
    hd_suggestion s;
    assert_ok(read_gguf(0.25f, &s));
    assert_true(s.temperature == 0.25 && s.top_p == 0.5 && s.top_k == 7);
    assert_int_equal(read_gguf(-2, &s), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "m.gguf: general.sampling.temp: expected 0 to 100"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folders, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(gguf_files, test_dir_make, test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
