/* Structured log: one JSON object a line on stderr.
 *
 * hd_log(HD_LOG_INFO, "model loaded", "path", "s", path, "bytes", "d", (int64_t)n, NULL): triples
 * of key, kind and value after the message, ended by NULL. Kinds: "s" const char * (NULL is null),
 * "d" int64_t, "f" double, "b" int as boolean. Thread: any; a line is written with one write(). */
#ifndef HD_BASE_LOG_H
#define HD_BASE_LOG_H

enum hd_log_level { HD_LOG_DEBUG, HD_LOG_INFO, HD_LOG_WARN, HD_LOG_ERROR, HD_LOG_OFF };

void hd_log_set_level(enum hd_log_level level); /* default HD_LOG_INFO */
enum hd_log_level hd_log_get_level(void);
/* Human-readable lines instead of JSON (for terminals). */
void hd_log_set_plain(int is_plain);
void hd_log(enum hd_log_level level, const char *message, ...) __attribute__((sentinel));

#endif
