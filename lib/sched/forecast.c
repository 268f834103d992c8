/* The load forecast. */
#include "sched/forecast.h"

static const int64_t WINDOW_NS = 1000000000;
static const double LEVEL_GAIN = 0.4, TREND_GAIN = 0.2;

/* After so many windows without a roll nothing of the past is left. */
enum { WINDOWS_MAX = 60 };

static void close_window(hd_forecast *f) {
    for (int c = 0; c < HD_SERVICE_COUNT; c++) {
        double load = f->sum[c] / (double)WINDOW_NS, before = f->level[c];
        f->level[c] = LEVEL_GAIN * load + (1 - LEVEL_GAIN) * (before + f->trend[c]);
        if (f->level[c] < 0) f->level[c] = 0;
        f->trend[c] = TREND_GAIN * (f->level[c] - before) + (1 - TREND_GAIN) * f->trend[c];
        f->sum[c] = 0;
    }
}

void hd_forecast_roll(hd_forecast *f, int64_t now_ns) {
    if (f->window_end_ns == 0) f->window_end_ns = now_ns + WINDOW_NS;
    for (int n = 0; now_ns >= f->window_end_ns && n < WINDOWS_MAX; n++) {
        close_window(f);
        f->window_end_ns += WINDOW_NS;
    }
    if (now_ns >= f->window_end_ns) *f = (hd_forecast){.window_end_ns = now_ns + WINDOW_NS};
}

void hd_forecast_add(hd_forecast *f, enum hd_service c, int64_t work_ns, int64_t now_ns) {
    hd_forecast_roll(f, now_ns);
    f->sum[c] += (double)work_ns;
}

double hd_forecast_load(const hd_forecast *f, enum hd_service c) {
    double load = 0;
    for (int k = 0; k <= (int)c; k++) {
        double next = f->level[k] + f->trend[k];
        if (next > 0) load += next;
    }
    return load;
}
