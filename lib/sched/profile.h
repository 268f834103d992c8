/* The latency profile: how long a step takes, learned from the steps that were.
 *
 * A step's load is x = (1, decoding rows, prompt rows, positions read). Two things are learned:
 *
 *     mean  t(x) = c.x * m(cell)       P95  t95(x) = t(x) * q(cell)
 *
 * A cell is a region of loads: powers of two of decoding rows and of prompt rows, powers of four of
 * positions read. Each keeps its steps' mean load and mean time (exponentially weighted, so that it
 * follows a machine that changes), and nothing of it is forgotten while others are visited: hours
 * of decoding do not unlearn what a prompt costs. c >= 0 is the least-squares fit of relative
 * errors over the cells' means (non-negative: Lawson and Hanson 1974, by trying all 15 supports of
 * four numbers); m corrects it where a cell knows better; q follows the 95th percentile of
 * time / t(x) by stochastic approximation (Robbins and Monro 1951). Memory is bounded by the number
 * of cells; a step costs some microseconds.
 *
 * Owner: the engine thread, or a simulator, which draws its steps' times from it. Allocates only in
 * new, copy and load. */
#ifndef HD_SCHED_PROFILE_H
#define HD_SCHED_PROFILE_H

#include "base/batch.h"
#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hd_profile hd_profile;

typedef struct hd_step_load {
    int n_decode;   /* sequences with one row */
    int n_prompt;   /* rows of the others */
    int64_t n_read; /* positions attended to, summed over rows */
} hd_step_load;

hd_step_load hd_step_load_of(const hd_batch *b);
/* n_row rows more of a sequence, at positions pos.. */
void hd_step_load_add(hd_step_load *l, int n_row, int pos);

hd_profile *hd_profile_new(void);
hd_profile *hd_profile_copy(const hd_profile *p);
void hd_profile_free(hd_profile *p); /* accepts NULL */

/* A step of this load took so long; times of 0 and less are ignored. */
void hd_profile_learn(hd_profile *p, const hd_step_load *l, int64_t ns);
/* Steps learned from; 0: nothing is known, and every prediction is 0. */
uint64_t hd_profile_n_step(const hd_profile *p);

/* Nanoseconds; P95 is never below the mean. */
int64_t hd_profile_mean_ns(const hd_profile *p, const hd_step_load *l);
int64_t hd_profile_p95_ns(const hd_profile *p, const hd_step_load *l);
/* Rows from position pos on, at most n_max, that can join a step of load l so that its P95 stays
 * within limit_ns; n_max when nothing is known. */
int hd_profile_rows_within(const hd_profile *p, const hd_step_load *l, int pos, int n_max,
                           int64_t limit_ns);
/* Mean time to compute n_tok prompt tokens from position pos on, chunk at a time, each step having
 * the load l besides. */
int64_t hd_profile_prompt_ns(const hd_profile *p, const hd_step_load *l, int n_tok, int pos,
                             int chunk);

/* The file: text, written whole or not at all. key: what the times are of (model, backend, device,
 * threads, dtype). load: HD_E_IO when it cannot be read; HD_E_CORRUPT names the line, or says that
 * it is of another key. parse: the same from memory. */
HD_MUST_CHECK hd_status hd_profile_save(const hd_profile *p, const char *path, uint64_t key);
HD_MUST_CHECK hd_status hd_profile_load(const char *path, uint64_t key, hd_profile **out);
HD_MUST_CHECK hd_status hd_profile_parse(hd_str text, uint64_t *key, hd_profile **out);

/* Asserts: coefficients and cells are finite, not negative, in their ranges. */
void hd_profile_check(const hd_profile *p);

#endif
