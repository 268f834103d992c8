/* What a step's attention consists of: made by the host from the batch, before its upload. No
 * device, no CUDA headers: the tests run it anywhere. */
#ifndef HD_CUDA_ATTN_PLAN_H
#define HD_CUDA_ATTN_PLAN_H

#include "base/batch.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HD_CUDA_FLASH_ROWS = 16,  /* BY_LENGTH: so many rows are many */
    HD_CUDA_QUERY_ROWS = 128, /* query rows of a flash task, at most */
    HD_CUDA_KEY_ROWS = 128,   /* positions of an expansion task, at most */
    HD_CUDA_TILE_POS = 32     /* positions of a tile of split attention */
};

/* Positions pos .. pos + n of a sequence are expanded into rows at .. at + n. */
typedef struct hd_cuda_expand_task {
    int32_t seq, pos, n, at;
} hd_cuda_expand_task;

/* Query rows row0 .. row0 + n_row, of one sequence, from position pos on. */
typedef struct hd_cuda_flash_task {
    int32_t row0, n_row, seq, pos;
} hd_cuda_flash_task;

/* The positions of a sequence that a wave has: pos0 .. pos1, from expanded row `at` on; pos0 is a
 * multiple of HD_CUDA_KEY_ROWS. The softmax of rows that see more than these is carried in memory.
 */
typedef struct hd_cuda_flash_part {
    int32_t pos0, pos1, at, pad;
} hd_cuda_flash_part;

/* Expansions that have room at a time, and the tasks that read them. */
typedef struct hd_cuda_wave {
    int seq0, part0; /* sequence seq0 + i has part part0 + i; empty where nothing is expanded */
    int expand0, n_expand, flash0, n_flash;
} hd_cuda_wave;

/* Rows row0 .. row0 + n, for split attention. */
typedef struct hd_cuda_run {
    int row0, n;
} hd_cuda_run;

/* A row of split attention. */
typedef struct hd_cuda_split_row {
    int32_t tile0; /* tiles of all rows before it */
    int32_t page0; /* of its sequence, in the batch's page[] */
    int32_t n_pos; /* positions that it sees */
    int32_t n_old; /* the first of its sequence's that this step writes */
} hd_cuda_split_row;

/* Which rows have flash tasks. */
enum hd_cuda_flash_rule {
    HD_CUDA_FLASH_NONE,
    HD_CUDA_FLASH_BY_FORM,  /* those of the expanded form, over expanded keys and values */
    HD_CUDA_FLASH_BY_LENGTH /* where a sequence has many rows, over the cache: one wave, no parts */
};

typedef struct hd_cuda_plan {
    enum hd_cuda_flash_rule rule;
    int page_tok;
    int n_room; /* BY_FORM: expanded rows at a time, a multiple of HD_CUDA_KEY_ROWS */
    int n_wave, n_run, n_expand, n_flash, n_part;
    hd_cuda_wave *wave;
    hd_cuda_run *run;
    hd_cuda_expand_task *expand;
    hd_cuda_flash_task *flash;
    hd_cuda_flash_part *part;
    hd_cuda_split_row *row; /* [n_row + 1]; the last one has all tiles before it */
    int n_wave_max, n_row_max, n_seq_max, n_page_max, n_expand_max, n_part_max;
} hd_cuda_plan;

/* Room for every batch of these sizes. */
void hd_cuda_plan_init(hd_cuda_plan *p, const hd_batch *sizes, enum hd_cuda_flash_rule rule,
                       int n_room);
void hd_cuda_plan_fini(hd_cuda_plan *p);
/* Whether that was done for sizes as large, by the same rule. */
bool hd_cuda_plan_fits(const hd_cuda_plan *p, const hd_batch *sizes, enum hd_cuda_flash_rule rule,
                       int n_room);
void hd_cuda_plan_make(hd_cuda_plan *p, const hd_batch *b);
/* Asserts that every row meets its positions, once each and in order. */
void hd_cuda_plan_check(const hd_cuda_plan *p, const hd_batch *b);

#ifdef __cplusplus
}
#endif

#endif
