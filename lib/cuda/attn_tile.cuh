// Tiles of BF16 in shared memory: copies that the thread does not wait for, and fragments.
//
// A row has a multiple of 128 bytes. Its pieces of 16 bytes are permuted inside of each 128 by the
// row's number, so that a piece of eight rows is in eight bank groups.
#pragma once

#include "cuda/sm90.cuh"

// Bytes from the tile's begin to piece `piece` of row `row`.
template <int ROW_BYTES> static __device__ __forceinline__ uint32_t piece_at(int row, int piece) {
    static_assert(ROW_BYTES % 128 == 0, "rows of whole bank lines");
    return (uint32_t)(row * ROW_BYTES + ((piece ^ (row & 7)) << 4));
}

// 16 bytes, or zeros where nothing is to be read; `from` is a valid address in any case.
static __device__ __forceinline__ void copy_piece(uint32_t to, const void *from, bool is_there) {
    copy16(to, from, is_there ? 16 : 0);
}

static __device__ __forceinline__ void store_piece(uint32_t to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

// Four 8x8 matrices of 16-bit values: lane l points at row l%8 of matrix l/8.
static __device__ __forceinline__ void load_four(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void load_four_transposed(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// ---- Hopper's products of 64 rows by a group of four warps ----
//
// Their operands in shared memory are columns of 64 elements: rows of 128 bytes, pieces permuted as
// above, the column aligned to 1024 bytes. A tile is such columns, one after the other.

template <int ROWS> static __device__ __forceinline__ uint32_t column_piece_at(int row, int piece) {
    return (uint32_t)(piece / 8 * ROWS * 128) + piece_at<128>(row, piece % 8);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HD_HAS_GROUP_PRODUCT 1

#define HD_PRODUCT_32(c)                                                                           \
    "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),      \
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),  \
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),  \
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),  \
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),  \
        "+f"(c[7][2]), "+f"(c[7][3])
#define HD_PRODUCT_NAMES                                                                           \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"

// c = (is_sum ? c : 0) + A B^T: A [64, 16], B [64, 16], both rows of 16 elements.
static __device__ __forceinline__ void group_product(float (*c)[4], uint64_t a, uint64_t b,
                                                     bool is_sum) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HD_PRODUCT_NAMES
                 ", %32, %33, p, 1, 1, 0, 0;\n}"
                 : HD_PRODUCT_32(c)
                 : "l"(a), "l"(b), "r"((int)is_sum));
}

// c += A B: A [64, 16] from registers, B [16, 64], rows of 64 elements.
static __device__ __forceinline__ void group_product(float (*c)[4], const uint32_t a[4],
                                                     uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HD_PRODUCT_NAMES
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : HD_PRODUCT_32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// The results of two products, beside one another, as the left side [16, 16] of another.
static __device__ __forceinline__ void left_fragment(const float (*s)[4], uint32_t p[4]) {
    p[0] = bf16_pair(s[0][0], s[0][1]);
    p[1] = bf16_pair(s[0][2], s[0][3]);
    p[2] = bf16_pair(s[1][0], s[1][1]);
    p[3] = bf16_pair(s[1][2], s[1][3]);
}

static __device__ __forceinline__ float exp2_fast(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
constexpr float LOG2_E = 1.44269504088896341f;
