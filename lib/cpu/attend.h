/* Attention over pages, as every attention op of this backend does it: the op says what its queries
 * are and how a block's keys and values are made, attend.c does the rest.
 *
 * The order of sums is a function of a query's position alone. A score is four sums over the values
 * of a key, every fourth in each of them, however many queries meet it (hd_cpu_scoring). A block of
 * HD_CPU_KV_BLOCK positions from position 0 on has its own softmax and its own sums of weighted
 * values, positions ascending. The blocks of a chunk are added up in order, then the chunks of a
 * stretch, then the stretches. So which thread takes which chunk, and which queries go through a
 * block together, changes no bit; and who has taken a stretch from its beginning on leaves one sum
 * of it to others instead of several. */
#ifndef HD_CPU_ATTEND_H
#define HD_CPU_ATTEND_H

#include "cpu/cpu.h"

#include <limits.h>

enum { HD_CPU_CHUNK = 8, HD_CPU_ONE_CHUNK = INT_MAX }; /* blocks of a chunk */
enum { HD_CPU_STRETCH = 4 };                           /* chunks of a stretch */

/* A block of positions as queries see it. */
typedef struct hd_cpu_block {
    int t0, n_t;        /* first position, positions */
    int n_pos;          /* positions that some query of the block sees, in it or behind it */
    hd_cpu_values k;    /* [n_t] keys */
    hd_cpu_values v;    /* [n_t] values, readable up to pad(n_v) */
    hd_cpu_ahead ahead; /* cache rows of the block behind it, or none */
} hd_cpu_block;

typedef struct hd_cpu_attention {
    hd_cpu *c;
    const hd_batch *batch;
    const int32_t *list; /* [n_row] rows, as hd_cpu_list_rows leaves them */
    int n_row;
    int n_unit, n_each; /* tasks that a group of rows is for, and a row's queries in each of them */
    int n_row_most;     /* of a group; with n_each, at most c->n_query queries */
    int n_key, n_v;
    int n_chunk; /* HD_CPU_CHUNK; HD_CPU_ONE_CHUNK: chunks would repeat what begin does */
    float scale;
    const void *op; /* for the functions below */
    /* What a task needs before its first block; NULL: nothing. */
    void (*begin)(const struct hd_cpu_attention *a, hd_cpu_scratch *t, int unit);
    /* Keys and values of b's positions of a sequence: k, v; ahead may be set. */
    void (*load)(const struct hd_cpu_attention *a, hd_cpu_scratch *t, int seq, int unit,
                 hd_cpu_block *b);
    /* Query i of a row in a unit: [n_key], and where its result goes: [n_v]. */
    const float *(*query)(const struct hd_cpu_attention *a, int row, int unit, int i);
    float *(*out)(const struct hd_cpu_attention *a, int row, int unit, int i);
} hd_cpu_attention;

/* Lists the batch's rows of one form (-1: all) in c->list[which], sequences whose page tables begin
 * alike side by side; returns how many. */
int hd_cpu_list_rows(hd_cpu *c, const hd_batch *b, int form, int which);
void hd_cpu_attend(const hd_cpu_attention *a);
/* Pointers to the cache rows of the block's positions of a sequence: row[n_t]. */
void hd_cpu_block_rows(const hd_batch *b, int seq, const hd_cpu_block *block, const void *cache,
                       size_t row_bytes, const void **row);
/* Values first .. first + n of a block's cache rows: where they lie when they are floats, or halves
 * and c reads those, and the rows follow one another; else decoded into room[n_t, pad(n)]. */
hd_cpu_values hd_cpu_block_values(const hd_cpu *c, const hd_cpu_cached *s, float *room);

#endif
