/* The statistics board. The words are atomics, so that a torn read is only inconsistent, never
 * undefined; the version is odd while they are written. */
#include "engine/stats.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

enum { n_word = (sizeof(hd_engine_stats) + 7) / 8, n_try = 1000 };

struct hd_stats_board {
    _Atomic uint64_t version, word[n_word];
};

hd_stats_board *hd_stats_board_new(void) { return hd_alloc_zero(1, sizeof(hd_stats_board)); }
void hd_stats_board_free(hd_stats_board *b) { hd_free(b); }

void hd_stats_board_put(hd_stats_board *b, const hd_engine_stats *s) {
    uint64_t word[n_word] = {0};
    memcpy(word, s, sizeof *s);
    uint64_t version = atomic_load(&b->version);
    atomic_store(&b->version, version + 1);
    for (int i = 0; i < n_word; i++) atomic_store(&b->word[i], word[i]);
    atomic_store(&b->version, version + 2);
}

void hd_stats_board_get(const hd_stats_board *b, hd_engine_stats *out) {
    uint64_t word[n_word];
    for (int i = 0; i < n_try; i++) {
        uint64_t version = atomic_load(&b->version);
        for (int k = 0; k < n_word; k++) word[k] = atomic_load(&b->word[k]);
        if (version % 2 == 0 && atomic_load(&b->version) == version) break;
    }
    memcpy(out, word, sizeof *out);
}
