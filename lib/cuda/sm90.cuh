// Instructions of sm_90a: warpgroup products with both operands in shared memory, and the barriers
// that order them with copies.
#pragma once

#include "cuda/device.cuh"

// A tile in shared memory is rows of 64 BF16 (128 bytes, the tile aligned to 1024); the 16-byte
// chunk c of row r lies at chunk c ^ (r % 8), the 128-byte swizzle of the PTX manual.
static __device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Descriptor of such a tile: 1024 bytes from eight rows to the next.
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)

// d = (keeps ? d : 0) + A B^T: A [64, 16], B [n, 16]. Of d, lane 4g+t of warp w has rows 16w + g
// (4j, 4j+1) and 16w + g + 8 (4j+2, 4j+3), columns 8j + 2t and 8j + 2t + 1.
static __device__ __forceinline__ void warpgroup_product(float (&d)[64], uint64_t a, uint64_t b,
                                                         int keeps) {
    asm volatile(
        "{.reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;}"
        : D16(0), D16(16), D16(32), D16(48)
        : "l"(a), "l"(b), "r"(keeps));
}
static __device__ __forceinline__ void warpgroup_product(float (&d)[128], uint64_t a, uint64_t b,
                                                         int keeps) {
    asm volatile("{.reg .pred p;\n setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
                 "%110, %111, "
                 " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
                 "%125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, 0;}"
                 : D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112)
                 : "l"(a), "l"(b), "r"(keeps));
}

#undef D4
#undef D16

static __device__ __forceinline__ void warpgroup_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void warpgroup_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void warpgroup_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// What ordinary stores wrote to shared memory becomes visible to warpgroup products.
static __device__ __forceinline__ void fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void barrier_init(uint32_t bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives when the thread's copies so far are there.
static __device__ __forceinline__ void barrier_arrive_copied(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// Arrives, and n_byte are still to come by bulk copies.
static __device__ __forceinline__ void barrier_expect(uint32_t bar, int n_byte) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n_byte)
                 : "memory");
}
// A box of a tensor map at (x, y, z), counted on bar.
static __device__ __forceinline__ void copy_box(uint32_t to, const void *map, int x, int y, int z,
                                                uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t phase) {
    asm volatile("{.reg .pred p;\n"
                 "again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again%=;}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
