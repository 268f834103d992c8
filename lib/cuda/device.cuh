// What every kernel is made of: BF16 terms of floats, the tensor core product, warp reductions.
#pragma once

#include "cuda/kernels.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits.h>
#include <math.h>

#define HD_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// Programmatic dependent launch. A kernel launched early may start as soon as every block of the
// kernel before it has called let_next_start() or ended, and reads nothing that other kernels write
// before wait_for_previous(), which returns when the kernel before has ended and its writes are
// seen. Every block of it calls that, also those that have nothing to do: the kernel after it
// counts on all earlier ones having ended, too. Before sm_90 kernels follow one another as usual.
static __device__ __forceinline__ void let_next_start(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void wait_for_previous(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- launches: device.cu ----

// The devices of a process are alike: told by the first. Any thread may ask.
struct hd_cuda_device {
    int n_sm;
    bool has_early;    // its kernels wait for those before them by themselves
    size_t shared_max; // bytes a block
};
const hd_cuda_device &hd_cuda_current(void);
// Whether HD_LAUNCH_EARLY launches early: hd_cuda_launch_in_turn.
bool hd_cuda_launches_early(void);
// The kernel's blocks may have all the shared memory that a block of the current device can. Any
// thread; costs little but the first time. An error stays in the runtime, as those of launches do.
void hd_cuda_allow_shared(const void *kernel);

// A map of boxes of n_row rows, 128 bytes of each: of values of `each` bytes (1, or 2: BF16).
struct hd_cuda_box_map {
    const void *data; // [n_mat, n_out, row_bytes]
    size_t each, row_bytes, mat_bytes, n_out, n_mat;
    int n_row;
};
cudaError_t hd_cuda_encode_map(const hd_cuda_box_map &b, CUtensorMap *map);

// Errors stay in the runtime, as those of <<<>>> do.
template <typename... P, typename... A>
static void hd_cuda_launch(bool is_early, void (*kernel)(P...), dim3 grid, unsigned block,
                           size_t shared, cudaStream_t stream, A... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &early, config.numAttrs = is_early && hd_cuda_launches_early() ? 1 : 0;
    if (shared > 0) hd_cuda_allow_shared((const void *)kernel);
    (void)cudaLaunchKernelEx(&config, kernel, P(args)...);
}
#define HD_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    hd_cuda_launch(false, kernel, grid, block, shared, stream, __VA_ARGS__)
#define HD_LAUNCH_EARLY(kernel, grid, block, shared, stream, ...)                                  \
    hd_cuda_launch(true, kernel, grid, block, shared, stream, __VA_ARGS__)

static __device__ __forceinline__ float bf16_value(uint32_t bits) {
    return __uint_as_float(bits << 16);
}
static __device__ __forceinline__ uint32_t bf16_bits(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
static __device__ __forceinline__ float f16_value(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}
static __device__ __forceinline__ uint32_t f16_bits(float v) {
    return __half_as_ushort(__float2half_rn(v));
}

// c += A B: A [16, 16], B [16, 8]; lane 4g+t holds of A rows g and g+8, of B column g, of c rows g
// and g+8, columns 2t and 2t+1.
static __device__ __forceinline__ void tensor_product(float c[4], const uint32_t a[4],
                                                      const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Two 8x8 matrices of 16-bit values, transposed: lanes 0-7 and 8-15 point at their rows.
static __device__ __forceinline__ void load_transposed(uint32_t b[2], const void *row) {
    uint32_t at = shared_address(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(at));
}

// 16 bytes from global to shared memory, past the first-level cache: the first n_byte of them,
// zeros behind. Copies are committed in groups.
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, int n_byte) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_byte)
                 : "memory");
}
static __device__ __forceinline__ void copy4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the last N groups are there, of this thread.
template <int N> static __device__ __forceinline__ void copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ float shuffle_xor(float v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
static __device__ __forceinline__ int shuffle_xor(int v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
static __device__ __forceinline__ uint32_t warp_ballot(bool v) {
    return __ballot_sync(0xffffffffu, v);
}
static __device__ __forceinline__ void warp_barrier(void) { __syncwarp(); }
