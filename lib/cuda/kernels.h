/* The launchers of the cuda backend: one a kernel, plain C on one side, CUDA C++ on the other.
 *
 * Every pointer inside the structs is the device's. A launcher enqueues and returns; errors are
 * sticky in the CUDA runtime and found by the next copy.
 *
 * Numbers. Products run on the tensor cores. Those that round take inputs and weights rounded to
 * BF16 once; the others are sums of BF16 terms, right to float32's accuracy: a float is the sum of
 * up to three of them, each the rest of rounding those before. BF16 and MXFP4 weights are one term,
 * F16 ones two, F32 and FP8 ones three, all exact; other quantised weights are two, right to 2^-17.
 * Activations are three terms against exact weights, two against rounded ones. Products of terms
 * that are below the last one kept are left out.
 *
 * Order (determinism level 1). A sum over inputs is cut into HD_CUDA_SLICES runs of whole blocks of
 * 32, by their number alone, block by block, and the runs are added in order; gemm_wgmma.cu has an
 * order of its own (form.c). A sum over positions is cut into units of HD_CUDA_UNIT positions, from
 * position 0, merged in order. Which threads compute a run or a unit, and how many rows at once,
 * differs by shape; the operations on the numbers of a row do not. */
#ifndef HD_CUDA_KERNELS_H
#define HD_CUDA_KERNELS_H

#include "dev/op.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HD_CUDA_SLICES = 8,
    HD_CUDA_UNIT = 64,
    HD_CUDA_EXPERT_MAX = 1024,
    HD_CUDA_ROUTE_EXPERTS = 256, /* of routing in one kernel */
    HD_CUDA_VALUE_MAX = 512,     /* widest value (or latent) of an attention head */
    HD_CUDA_FEW_ROWS = 8,        /* rows of a tile for few rows, */
    HD_CUDA_STREAM_ROWS = 16,    /* in stream.cuh, */
    HD_CUDA_MANY_ROWS = 64,      /* and for many */
    HD_CUDA_GEMM_ROWS = 128,     /* of hd_cuda_run_gemm, */
    HD_CUDA_GEMM_MIN = 17,       /* which takes products of so many rows, */
    HD_CUDA_GEMM_CODED_MIN = 65, /* with weights that it has to decode of so many, */
    HD_CUDA_GEMM_PICKS = 4,      /* and so many of an expert in the mean */
    HD_CUDA_FP8_ROWS = 256,      /* products of FP8 weights of more rows decode them to BF16 */
    HD_CUDA_FP8_TILE = 16,       /* rows of an expert's tile there */
    HD_CUDA_FP8_BLOCK = 1024,    /* codes of a block of such weights on the device, */
    HD_CUDA_FP8_BYTES = 1056,    /* and its bytes */
    HD_CUDA_MAP_BYTES = 128,
    HD_CUDA_BOX_ROWS = 64,  /* of a weight, 128 bytes each: what its map copies at a time */
    HD_CUDA_SORT_ROWS = 256 /* of a block of hd_cuda_run_sort_many */
};

/* A weight as it lies on the device: rows padded with zeros to 16 bytes, of float formats to blocks
 * of 32. Rows of HD_F8_B128 are laid out anew: for every HD_CUDA_FP8_BLOCK inputs, of which the
 * last may be fewer, 8 float scales, then the codes. Of 64 codes the eight inputs 8t + i and then
 * the eight 32 + 8t + i are 16 bytes, what a lane t of a product takes at a time, and of every four
 * the middle two have changed places: even bytes and odd bytes of a word are neighbours. */
typedef struct hd_cuda_mat {
    const unsigned char *data; /* [n_mat, n_out, row_bytes] */
    enum hd_format format;
    int n_in, n_out, n_mat;
    size_t row_bytes, mat_bytes;
    const void *map; /* of BF16 and FP8 matrices, on the host: a CUtensorMap of boxes, or NULL */
    bool is_decoded; /* written anew before each use */
} hd_cuda_mat;

/* Rows first .. first + n of one matrix. */
typedef struct hd_cuda_tile {
    int mat, first, n;
} hd_cuda_tile;

enum hd_cuda_into {
    HD_CUDA_STORE,
    HD_CUDA_ADD,
    HD_CUDA_SWIGLU /* y = silu(y) * (W x) */
};

/* y = W x, for every matrix of w; with up (data not NULL): y = silu(W x) * (up x). Dense: rows 0 ..
 * n_row of each matrix. With tiles: the rows that the device's list names, n_tile_max of them at
 * most, of tile_rows each. */
typedef struct hd_cuda_mul {
    hd_cuda_mat w, up;
    const float *x;         /* row r of matrix m: x + m*x_mat + x_row[r]*ldx */
    const uint16_t *x_bf16; /* instead of x: hd_cuda_run_gemm */
    const int32_t *x_row;   /* NULL: 0, 1, 2, ... */
    float *y;               /* row r of matrix m: y + m*y_mat + r*ldy */
    uint16_t *y_bf16;       /* not NULL: there instead, rounded (hd_cuda_run_gemm) */
    size_t ldx, x_mat, ldy, y_mat;
    enum hd_cuda_into into;
    bool is_rounded;   /* inputs and weights to BF16: one term each */
    bool is_ordered;   /* sums in the order that all kernels have but those of FP8 weights */
    const float *norm; /* NULL, or [n_in]: x is normed first, by stream.cuh */
    float eps;
    int n_row;
    const hd_cuda_tile *tile; /* NULL: dense */
    const int *n_tile;
    int n_tile_max, tile_rows;
} hd_cuda_mul;
/* One or two products, independent of one another: one launch where that can be. */
void hd_cuda_run_mul(const hd_cuda_mul *m, int n, cudaStream_t stream);
/* Whether stream.cuh takes the products, of one format: rounded, of few rows (an
 * expert's tiles of HD_CUDA_STREAM_ROWS at most). It norms inputs. */
bool hd_cuda_can_stream(const hd_cuda_mul *m, int n);
/* Rows of a tile there at most; 0: one row's inputs have no room in shared memory. */
int hd_cuda_stream_rows(const hd_cuda_mul *m);
/* Bytes between rows of inputs in shared memory: those of neighbours start in different banks. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline size_t
    hd_cuda_input_stride(int n_in) {
    return (size_t)((n_in + 63) / 64 * 128 + 64);
}

/* Whether mul_fp8.cu takes the products, which hd_cuda_run_mul leaves it: rounded, not ordered, up
 * to HD_CUDA_FP8_ROWS (an expert's tiles of HD_CUDA_FP8_TILE at most). It norms inputs, too. Codes
 * are multiplied as they are, and sums by the scales: no weight is rounded. */
bool hd_cuda_can_mul_fp8(const hd_cuda_mul *m, int n);
void hd_cuda_run_mul_fp8(const hd_cuda_mul *m, int n, cudaStream_t stream);
/* Rows of a tile there at most; 0: no eight rows' inputs have room in shared memory. */
int hd_cuda_fp8_rows(int n_in);

/* The same for many rows, with BF16 weights and BF16 inputs x_bf16, whose rows are aligned to 16
 * bytes; tiles of HD_CUDA_GEMM_ROWS. Both with up or both without; not HD_CUDA_SWIGLU. */
typedef struct hd_cuda_gemm_how {
    int n_block;     /* the device's multiprocessors */
    bool is_sm90;    /* it has warpgroup products, and so have the kernels that it runs */
    bool is_ordered; /* sums in the order of hd_cuda_run_mul, at a price */
} hd_cuda_gemm_how;
void hd_cuda_run_gemm(const hd_cuda_mul *m, int n, const hd_cuda_gemm_how *how,
                      cudaStream_t stream);
/* Writes a map of HD_CUDA_MAP_BYTES for w, whose data is BF16, to host memory. */
cudaError_t hd_cuda_make_map(const hd_cuda_mat *w, void *map);

/* The matrices of w as BF16, rounded: rows of n_in padded with zeros to blocks of 32, one after the
 * other. */
void hd_cuda_run_decode(const hd_cuda_mat *w, uint16_t *out, cudaStream_t stream);

/* out[r] = x[r] rounded to BF16, r rows of n, ld apart in out. */
void hd_cuda_run_round(const float *x, int n_row, int n, uint16_t *out, size_t ld,
                       cudaStream_t stream);

/* out[r] = w * x[ix[r]] / sqrt(mean + eps): n_row rows of n; out may be x. */
typedef struct hd_cuda_norm {
    const float *x, *w;
    const int32_t *ix; /* NULL: 0, 1, 2, ... */
    float *out;
    uint16_t *out_bf16; /* not NULL: there, too, ld_bf16 apart; out may be NULL then */
    size_t ld_bf16;
    float eps;
    int n_row, n;
} hd_cuda_norm;
void hd_cuda_run_norm(const hd_cuda_norm *a, cudaStream_t stream);

void hd_cuda_run_embed(const struct hd_op_embed *args, const hd_cuda_mat *table,
                       cudaStream_t stream);
void hd_cuda_run_sample(const struct hd_op_sample *args, cudaStream_t stream);

/* What follows the projections in front of attention; args' pointers are the device's. kv, k and v
 * are overwritten. lost: on the device, too; how many values the cache's type cannot hold is added
 * there. */
void hd_cuda_run_mla_finish(const struct hd_op_mla_qkv *args, float *kv, unsigned long long *lost,
                            cudaStream_t stream);
void hd_cuda_run_gqa_finish(const struct hd_op_gqa_qkv *args, float *k, float *v,
                            unsigned long long *lost, cudaStream_t stream);

/* Queries over a cache's positions 0 .. pos. Query head h of row r is n_q0 values at
 * q0 + (r*n_head + h)*ldq0, then n_key - n_q0 at q1 + (r*n_head + h)*ldq1. */
typedef struct hd_cuda_attn {
    const float *q0, *q1;
    const void *keys, *values; /* equal: a value is the first n_v of its key */
    float *out;                /* [n_row, n_head, n_v] */
    float *part; /* NULL, or room for [n_row, n_unit, n_head, 2 + n_v]: a task a unit */
    const int32_t *pos, *row_seq, *seq_page0, *page;
    size_t ldq0, ldq1;
    hd_kv_layout kv; /* of keys and of values */
    int n_q0, n_key, n_v, n_head, n_head_kv, page_tok;
    int n_row, n_unit; /* units of the longest row */
    float scale;
} hd_cuda_attn;
void hd_cuda_run_attn(const hd_cuda_attn *a, cudaStream_t stream);
/* Bytes of shared memory that a task takes. */
size_t hd_cuda_attn_shared(enum hd_kv_type kv, int n_key, int n_v, bool is_latent);

/* Experts and weights of every row from its router products score [R, E]. */
void hd_cuda_run_select(const struct hd_op_route *args, const float *score, cudaStream_t stream);

/* Rows by expert: a slot a (row, expert) pair, expert by expert, rows ascending. */
typedef struct hd_cuda_sort {
    const int32_t *expert; /* [n_row, n_used] */
    int n_row, n_used, n_expert, tile_rows;
    int expert0;        /* the experts are expert0 to expert0 + n_expert - 1 */
    int32_t *row_of;    /* [n_row * n_used] row of a slot */
    int32_t *slot_of;   /* [n_row, n_used] -1: of another expert */
    hd_cuda_tile *tile; /* [n_row*n_used / tile_rows + n_expert] */
    int *n_tile;
    int *count; /* [n_row / HD_CUDA_SORT_ROWS rounded up, n_expert], of the second only */
} hd_cuda_sort;
void hd_cuda_run_sort(const hd_cuda_sort *a, cudaStream_t stream);
void hd_cuda_run_sort_many(const hd_cuda_sort *a,
                           cudaStream_t stream); /* the same, for many rows */

/* Whether hd_cuda_run_route() takes these; if it does, for any number of rows. */
bool hd_cuda_can_route(const struct hd_op_route *args, enum hd_format router);
/* Groups of rows there. Of one group the picks are sorted as well. */
int hd_cuda_route_groups(const struct hd_op_route *args);
/* Norm, scores (kept in score [R, E]) and choice. n_ended: [groups], 0 before and after. */
void hd_cuda_run_route(const struct hd_op_route *args, const hd_cuda_mat *router, float *score,
                       unsigned *n_ended, const hd_cuda_sort *sort, cudaStream_t stream);

/* x[r] += sum over k of weight[r][k] * y[slot_of[r][k]], k ascending, then + shared[r]; x[r] =
 * instead when is_partial. */
typedef struct hd_cuda_combine {
    const float *y, *weight, *shared; /* shared NULL: none */
    const int32_t *slot_of;           /* [n_row, n_used] -1: none */
    bool is_partial;
    float *x;
    int n_row, n_used, n;
} hd_cuda_combine;
void hd_cuda_run_combine(const hd_cuda_combine *a, cudaStream_t stream);

/* BF16 products and bytes read a second, over a buffer larger than the cache. Waits. */
cudaError_t hd_cuda_measure(void *buffer, size_t n_byte, int n_sm, double *flops,
                            double *read_bytes, cudaStream_t stream);

/* x[i] = sum over ranks k, ascending, of all[k][i]. */
void hd_cuda_run_sum_ranks(const float *all, int n_rank, size_t n, float *x, cudaStream_t stream);

/* Whether the current device can run the kernels that were built; *level: the architecture, as
 * 10*major + minor, that those it runs were compiled for, which may be older than the device. */
cudaError_t hd_cuda_check_image(int *level);
bool hd_cuda_can_decode(enum hd_format f);

/* From now on, on this thread, no kernel is launched before the one in front of it has ended, also
 * where it could wait for it by itself. Graphs that were captured before stay as they are. */
void hd_cuda_launch_in_turn(bool on);

#ifdef __cplusplus
}
#endif

#endif
