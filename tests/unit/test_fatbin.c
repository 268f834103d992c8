/* CUDA code inside files: files that nvcc 13.0 made, the rules of loading, and broken containers.
 */
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/fatbin.h"
#include "file/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hd_fatbin read_golden(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/fatbin/%s", getenv("HADAL_SOURCE_DIR"), name);
    hd_mapping m;
    hd_fatbin f;
    assert_int_equal(hd_mapping_open(path, &m), HD_OK);
    assert_int_equal(hd_fatbin_read(m.ptr, m.n_byte, &f), HD_OK);
    hd_mapping_close(&m);
    return f;
}

static void check_choice(const hd_fatbin *f, int capability, const char *expected) {
    const hd_fatbin_target *t = hd_fatbin_choose(f, capability);
    char name[32] = "none";
    if (t) hd_fatbin_name(t, name);
    assert_string_equal(name, expected);
}

/* nvcc -fatbin -gencode arch=compute_X,code=... for sm_75, sm_80, sm_90a, sm_100f and compute_90.
 */
static void test_many(void **state) {
    (void)state;
    hd_fatbin f = read_golden("many.fatbin");
    static const char *const names[] = {"sm_75", "sm_80", "sm_90a", "sm_100f", "compute_90"};
    assert_int_equal(f.n_target, 5);
    assert_int_equal(f.n_other, 0);
    for (int i = 0; i < 5; i++) {
        char name[32];
        hd_fatbin_name(&f.target[i], name);
        assert_string_equal(name, names[i]);
        assert_int_equal(f.target[i].n_entry, 1);
        assert_int_equal(f.target[i].is_ptx, i == 4);
    }
    static const struct {
        int capability;
        const char *target;
    } choices[] = {{70, "none"},        {75, "sm_75"},      {80, "sm_80"},    {86, "sm_80"},
                   {89, "sm_80"},       {90, "sm_90a"},     {100, "sm_100f"}, {103, "sm_100f"},
                   {110, "compute_90"}, {120, "compute_90"}};
    for (size_t i = 0; i < HD_COUNT_OF(choices); i++)
        check_choice(&f, choices[i].capability, choices[i].target);
}

/* PTX for sm_90a is for that chip alone, too. */
static void test_arch_specific_ptx(void **state) {
    (void)state;
    hd_fatbin f = read_golden("ptx90a.fatbin");
    check_choice(&f, 90, "compute_90a");
    check_choice(&f, 100, "none");
    check_choice(&f, 80, "none");
}

static void test_rules(void **state) {
    (void)state;
    static const struct {
        hd_fatbin_target t;
        int capability;
        bool loads;
    } row[] = {
        {{.capability = 80}, 80, true},
        {{.capability = 80}, 86, true},
        {{.capability = 86}, 80, false},
        {{.capability = 80}, 90, false},
        {{.capability = 90, .suffix = HD_FATBIN_ARCH}, 90, true},
        {{.capability = 90, .suffix = HD_FATBIN_ARCH}, 92, false},
        {{.capability = 100, .suffix = HD_FATBIN_FAMILY}, 103, true},
        {{.capability = 103, .suffix = HD_FATBIN_FAMILY}, 100, false},
        {{.capability = 100, .suffix = HD_FATBIN_FAMILY}, 120, false},
        {{.capability = 80, .is_ptx = true}, 120, true},
        {{.capability = 90, .is_ptx = true}, 89, false},
        {{.capability = 100, .is_ptx = true, .suffix = HD_FATBIN_FAMILY}, 120, false},
        {{.capability = 100, .is_ptx = true, .suffix = HD_FATBIN_FAMILY}, 103, true},
    };
    for (size_t i = 0; i < HD_COUNT_OF(row); i++)
        assert_int_equal(hd_fatbin_loads(&row[i].t, row[i].capability), row[i].loads);
}

/* Found anywhere in a file, several times, and whatever stands between. */
static void test_inside(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/fatbin/ptx90a.fatbin", getenv("HADAL_SOURCE_DIR"));
    hd_mapping m;
    assert_int_equal(hd_mapping_open(path, &m), HD_OK);
    size_t n = 2 * m.n_byte + 30;
    unsigned char *two = hd_alloc_zero(n, 1);
    two[5] = 0x50; /* the magic number's first byte, alone */
    memcpy(two + 13, m.ptr, m.n_byte);
    memcpy(two + 20 + m.n_byte, m.ptr, m.n_byte);
    hd_fatbin f;
    assert_int_equal(hd_fatbin_read(two, n, &f), HD_OK);
    assert_int_equal(f.n_target, 1);
    assert_int_equal(f.target[0].n_entry, 2);
    /* Cut anywhere inside of the second: its offset is named. */
    for (size_t end = m.n_byte + 36; end < 2 * m.n_byte + 20; end++) {
        assert_int_equal(hd_fatbin_read(two, end, &f), HD_E_CORRUPT);
        assert_non_null(strstr(hd_error_text(), "at byte "));
    }
    hd_free(two);
    hd_mapping_close(&m);
}

static void test_none(void **state) {
    (void)state;
    hd_fatbin f;
    assert_int_equal(hd_fatbin_read("no code here, and more than a header", 36, &f),
                     HD_E_NOT_FOUND);
    assert_int_equal(hd_fatbin_read("", 0, &f), HD_E_NOT_FOUND);
}

/* An entry longer than its container, or too short to be one. */
static void test_contradictions(void **state) {
    (void)state;
    unsigned char b[16 + 48] = {0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 48};
    hd_fatbin f;
    b[16] = 2, b[20] = 48, b[44] = 80;
    assert_int_equal(hd_fatbin_read(b, sizeof b, &f), HD_OK);
    assert_int_equal(f.target[0].capability, 80);
    b[24] = 1;
    assert_int_equal(hd_fatbin_read(b, sizeof b, &f), HD_E_CORRUPT);
    b[24] = 0, b[20] = 47;
    assert_int_equal(hd_fatbin_read(b, sizeof b, &f), HD_E_CORRUPT);
    b[20] = 0;
    assert_int_equal(hd_fatbin_read(b, sizeof b, &f), HD_E_CORRUPT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),  cmocka_unit_test(test_arch_specific_ptx),
        cmocka_unit_test(test_rules), cmocka_unit_test(test_inside),
        cmocka_unit_test(test_none),  cmocka_unit_test(test_contradictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
