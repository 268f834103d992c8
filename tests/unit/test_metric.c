/* Metrics: those of a service class carry its name, histograms too, and each family is one. */
#include "support/check.h"

#include "base/metric.h"

#include <stdio.h>
#include <string.h>

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what)) n++;
    return n;
}

static void classes_are_labels(void **state) {
    (void)state;
    hd_metric_reset_all();
    for (unsigned k = 0; k < HD_SERVICE_COUNT; k++) {
        hd_metric_add((enum hd_metric)(HD_M_CLASS_REFUSED + k), 10 + k);
        hd_metric_observe((enum hd_metric)(HD_M_CLASS_TTFT + k), 0.3);
    }
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_metric_render(&b, "m");
    for (unsigned k = 0; k < HD_SERVICE_COUNT; k++) {
        const char *name = hd_service_name((enum hd_service)k);
        char line[200];
        snprintf(line, sizeof line,
                 "\nhadal_requests_refused_total{model_name=\"m\",engine=\"0\",class=\"%s\"} %u\n",
                 name, 10 + k);
        assert_non_null(strstr(b.ptr, line));
        snprintf(line, sizeof line,
                 "\nhadal_time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\","
                 "class=\"%s\",le=\"0.25\"} 0\n",
                 name);
        assert_non_null(strstr(b.ptr, line));
        snprintf(line, sizeof line,
                 "\nhadal_time_to_first_token_seconds_count{model_name=\"m\",engine=\"0\","
                 "class=\"%s\"} 1\n",
                 name);
        assert_non_null(strstr(b.ptr, line));
    }
    assert_int_equal(count(b.ptr, "# TYPE hadal_time_to_first_token_seconds histogram\n"), 1);
    assert_int_equal(count(b.ptr, "# TYPE hadal_requests_refused_total counter\n"), 1);
    hd_buf_fini(&b);
}

static void tiers_are_classes(void **state) {
    (void)state;
    for (int k = 0; k < HD_SERVICE_COUNT; k++)
        assert_int_equal(hd_service_find(hd_service_name((enum hd_service)k)), k);
    assert_int_equal(hd_service_find("auto"), HD_SERVICE_STANDARD);
    assert_int_equal(hd_service_find("default"), HD_SERVICE_STANDARD);
    assert_int_equal(hd_service_find("priority"), HD_SERVICE_INTERACTIVE);
    assert_int_equal(hd_service_find("flex"), HD_SERVICE_BATCH);
    assert_int_equal(hd_service_find("scale"), -1);
    hd_service_target t = hd_service_defaults(HD_SERVICE_BATCH, (hd_service_target){.ttft_ns = 5});
    assert_int_equal(t.wait_ns, 5); /* who promises the first token refuses who would miss it */
    assert_true(t.slowdown > 1 && t.itl_ns == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_labels),
        cmocka_unit_test(tiers_are_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
