// y = W x for FP8 weights and up to a few hundred rows, inputs rounded to BF16: as fast as the codes
// can be read.
//
// The plan is stream.cuh's: blocks of eight warps, each block an equal share of the items of sixteen
// outputs for a tile of rows, whose inputs lie in shared memory; a warp has a run of the inputs, and
// the runs' sums are added in order. Weights go straight to registers as codes, 64 inputs of an
// output at a time, those of the next item while this one is multiplied. A code becomes BF16
// exactly; what 64 inputs add up to is multiplied by the scale. With more rows there are more
// products with the same registers: a weight is read once a tile.
#include "cuda/stream.cuh"

// Codes on their way: so many times 64 inputs of two outputs.
constexpr int SEGMENT = 64, AHEAD = 4;
struct fp8_segment {
    uint4 codes[2];
    float scale[2];
};

// Segment s of both rows: this lane's sixteen codes of it.
static __device__ __forceinline__ void load_segment(const unsigned char *const row[2], int s,
                                                    fp8_segment *to) {
    constexpr int EACH = HD_CUDA_FP8_BLOCK / SEGMENT, SCALES = HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned char *block = row[i] + (size_t)(s / EACH) * HD_CUDA_FP8_BYTES;
        const unsigned char *at = block + SCALES + s % EACH * SEGMENT + threadIdx.x % 4 * 16;
        to->codes[i] = __ldg((const uint4 *)at);
        to->scale[i] = __ldg((const float *)block + s % EACH / 2);
    }
}

// Four codes as BF16: the even bytes, and the odd ones. A code's bits are those of a BF16 value that
// is 2^-120 of it.
static __device__ __forceinline__ void bf16_of_codes(uint32_t codes, uint32_t *even,
                                                     uint32_t *odd) {
    uint32_t low = codes << 8;
    low = (low >> 4 & 0x07f007f0u) | (low & 0x80008000u);
    uint32_t high = (codes >> 4 & 0x07f007f0u) | (codes & 0x80008000u);
    const __nv_bfloat162 factor = __halves2bfloat162(__ushort_as_bfloat16(0x7b80),
                                                     __ushort_as_bfloat16(0x7b80)); // 2^120
    __nv_bfloat162 e = __hmul2(*(const __nv_bfloat162 *)&low, factor);
    __nv_bfloat162 o = __hmul2(*(const __nv_bfloat162 *)&high, factor);
    *even = *(const uint32_t *)&e, *odd = *(const uint32_t *)&o;
}

// total += scale * the segment times the inputs at x, n_row rows `stride` bytes apart: those past
// them are computed like the last.
template <int NT>
static __device__ __forceinline__ void multiply_segment(const fp8_segment &w,
                                                        const unsigned char *x, size_t stride,
                                                        int n_row, float total[NT][4]) {
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 &c = w.codes[i];
        bf16_of_codes(c.x, &a[0][i], &a[0][2 + i]);
        bf16_of_codes(c.y, &a[1][i], &a[1][2 + i]);
        bf16_of_codes(c.z, &a[2][i], &a[2][2 + i]);
        bf16_of_codes(c.w, &a[3][i], &a[3][2 + i]);
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
        if (j > 0 && 8 * j >= n_row) break;
        const unsigned char *row =
            x + (size_t)min(8 * j + (int)threadIdx.x % 32 / 4, n_row - 1) * stride;
        uint32_t v[2][1][4];
        get_inputs(row, (int)threadIdx.x % 4 * 8, v[0]);
        get_inputs(row, (int)threadIdx.x % 4 * 8 + 32, v[1]);
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) tensor_product(sum, a[k], v[k / 2][0] + k % 2 * 2);
#pragma unroll
        for (int c = 0; c < 4; c++) total[j][c] = __fmaf_rn(w.scale[c / 2], sum[c], total[j][c]);
    }
}

// This warp's segments of n_in inputs.
struct fp8_run {
    int first, n;
};
static __device__ __forceinline__ fp8_run run_of(int n_in) {
    int warp = (int)threadIdx.x / 32, n = n_in / SEGMENT, first = n * warp / SLICES;
    return {first, n * (warp + 1) / SLICES - first};
}

template <int NT>
__global__ void __launch_bounds__(256, NT > 2 ? 1 : 2)
    mul_fp8(const __grid_constant__ stream_args a) {
    constexpr int ROWS = 8 * NT;
    HD_DYNAMIC_SHARED(inputs);
    __shared__ float part[SLICES][16][ROWS];
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    let_next_start();

    stream_place here, next;
    fp8_segment ahead[AHEAD];
    const unsigned char *row[2], *next_row[2];
    auto begin = [&](const stream_place &p) {
        const hd_cuda_mul &m = a.m[p.product];
        fp8_run run = run_of(m.w.n_in);
        item_rows(m, p, row);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (u < run.n) load_segment(row, run.first + u, &ahead[u]);
    };
    here.n_product = a.m[0].tile != nullptr ? 0 : a.n == 2 && a.m[1].tile == nullptr ? 2 : 1;
    here.enter(a, 0);
    bool has_begun = here.is_valid();
    if (has_begun) begin(here);
    wait_for_previous();
    if (!has_begun) {
        int n_known = here.n_product;
        here.n_product = a.n;
        here.enter(a, n_known);
        if (here.is_valid()) begin(here);
    }
    here.n_product = a.n;

    for (bool is_new = true; here.is_valid(); here = next) {
        const hd_cuda_mul &m = a.m[here.product];
        size_t stride = hd_cuda_input_stride(m.w.n_in);
        if (is_new) {
            load_inputs(m, here.tile, inputs);
            __syncthreads();
        }
        next = here;
        is_new = next.next(a);
        fp8_run run = run_of(m.w.n_in), next_run = {0, 0};
        if (next.is_valid()) {
            const hd_cuda_mul &to = a.m[next.product];
            next_run = run_of(to.w.n_in);
            item_rows(to, next, next_row);
        }
        float total[NT][4] = {};
        for (int s = 0; s == 0 || s < run.n; s += AHEAD)
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int at = s + u;
                if (at < run.n)
                    multiply_segment<NT>(ahead[u], inputs + (run.first + at) * SEGMENT * 2, stride,
                                         here.tile.n, total);
                if (at + AHEAD < run.n)
                    load_segment(row, run.first + at + AHEAD, &ahead[u]);
                else if ((at < run.n || s == 0) && u < next_run.n)
                    load_segment(next_row, next_run.first + u, &ahead[u]);
            }
        row[0] = next_row[0], row[1] = next_row[1];
        __syncthreads(); // the sums before have been used, and nobody reads the inputs any more
#pragma unroll
        for (int j = 0; j < NT; j++) {
            *(float2 *)&part[warp][g][8 * j + 2 * t] = make_float2(total[j][0], total[j][1]);
            *(float2 *)&part[warp][g + 8][8 * j + 2 * t] = make_float2(total[j][2], total[j][3]);
        }
        __syncthreads();
        bool is_gated = m.up.data != nullptr;
        int n_out = is_gated ? 8 : 16;
        for (int i = (int)threadIdx.x; i < n_out * here.tile.n; i += 256) {
            int o = i % n_out, r = i / n_out;
            float sum = 0, up = 0;
#pragma unroll
            for (int s = 0; s < SLICES; s++) {
                sum += part[s][o][r];
                if (is_gated) up += part[s][o + 8][r];
            }
            put(m, here.tile, r, here.out * n_out + o, is_gated ? gated(sum, up) : sum);
        }
    }
}

template <int NT> static void launch(const stream_args &a, long long n_item, size_t shared,
                                     cudaStream_t stream) {
    size_t own = shared + SLICES * 16 * 8 * NT * sizeof(float) + 1280; // and what the system takes
    int n_fit = NT > 2 || 2 * own > hd_cuda_current().shared_max ? 1 : 2;
    long long n_slot = n_fit * (long long)hd_cuda_current().n_sm;
    auto kernel = mul_fp8<NT>;
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared);
    HD_LAUNCH_EARLY(kernel, dim3((unsigned)(n_item < n_slot ? n_item : n_slot)), 256, shared, stream,
                    a);
}

// Rows of a tile: those of the list, or as many as there are, up to what has room: 16 of two blocks a
// multiprocessor, 32 of one.
static int tile_rows(const hd_cuda_mul &m, bool is_alone) {
    if (m.tile != nullptr) return m.tile_rows;
    int n = hd_cuda_fp8_rows(m.w.n_in);
    return n >= 32 && m.n_row > 16 && is_alone ? 32 : n < 16 ? n : 16;
}

// n products that hd_cuda_can_mul_fp8().
extern "C" void hd_cuda_run_mul_fp8(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    stream_args a = {};
    size_t shared = 0;
    long long n_item = 0;
    int most = 0;
    a.n = n;
    for (int i = 0; i < n; i++) {
        const hd_cuda_mul *from = &m[m[0].tile != nullptr ? n - 1 - i : i];
        a.m[i] = *from;
        a.rows[i] = tile_rows(*from, m[0].tile == nullptr);
        long long n_tile =
            (long long)((from->n_row + a.rows[i] - 1) / a.rows[i]) * from->w.n_mat;
        if (from->tile != nullptr) n_tile = from->n_tile_max;
        n_item += n_tile * stream_place::n_out_tile(*from);
        int n_row = from->tile == nullptr && from->n_row < a.rows[i] ? from->n_row : a.rows[i];
        size_t own = (size_t)n_row * hd_cuda_input_stride(from->w.n_in);
        shared = own > shared ? own : shared;
        most = n_row > most ? n_row : most;
    }
    if (n_item == 0) return;
    if (most <= 8)
        launch<1>(a, n_item, shared, stream);
    else if (most <= 16)
        launch<2>(a, n_item, shared, stream);
    else
        launch<4>(a, n_item, shared, stream);
}
