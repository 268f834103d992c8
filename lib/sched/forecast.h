/* The load forecast: how much work a second the coming seconds will bring, by service class.
 *
 * Work is nanoseconds of the device; a load of 1 keeps it busy. Arrivals are summed over windows of
 * a second; level and trend are smoothed over the windows (double exponential smoothing, Holt 1957)
 * and the forecast is the level one window ahead, so that the beginning of a burst counts for more
 * than its mean so far. Owner: the scheduler. Nothing allocates. */
#ifndef HD_SCHED_FORECAST_H
#define HD_SCHED_FORECAST_H

#include "base/service.h"

typedef struct hd_forecast {
    int64_t window_end_ns; /* of the window being summed; 0: none yet */
    double sum[HD_SERVICE_COUNT], level[HD_SERVICE_COUNT], trend[HD_SERVICE_COUNT];
} hd_forecast;

void hd_forecast_add(hd_forecast *f, enum hd_service c, int64_t work_ns, int64_t now_ns);
/* Brings the windows up to now. */
void hd_forecast_roll(hd_forecast *f, int64_t now_ns);
/* Of class c and all more urgent ones, as of the last roll. */
double hd_forecast_load(const hd_forecast *f, enum hd_service c);

#endif
