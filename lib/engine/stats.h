/* A board that one thread writes and any thread reads without ever blocking: a sequence lock. */
#ifndef HD_ENGINE_STATS_H
#define HD_ENGINE_STATS_H

#include "hadal.h"

typedef struct hd_stats_board hd_stats_board;
hd_stats_board *hd_stats_board_new(void);
void hd_stats_board_free(hd_stats_board *b);
void hd_stats_board_put(hd_stats_board *b, const hd_engine_stats *s);
/* A consistent copy; when the writer was halted in the middle of a put, an inconsistent one. */
void hd_stats_board_get(const hd_stats_board *b, hd_engine_stats *out);

#endif
