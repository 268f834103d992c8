// y = W x for FP8 weights and up to a few hundred rows, inputs rounded to BF16: as fast as the
// codes can be read.
//
// The plan is stream.cuh's: blocks of eight warps, each block an equal share of the items of
// sixteen outputs for a tile of rows, whose inputs lie in shared memory; a warp has a run of the
// inputs, and the runs' sums are added in order. A warp's codes, 64 inputs of sixteen outputs at a
// time, come through a ring (ring.cuh). A
// code becomes BF16 exactly; what 64 inputs add up to is multiplied by the scale. With more rows
// there are more products with the same registers: a weight is read once a tile.
#include "cuda/ring.cuh"

constexpr size_t FP8_FIXED = 2048; // bytes that a block takes besides
constexpr int SEGMENT = 64, SEGMENT_BYTES = 16 * SEGMENT + 16 * 4; // codes of 16 outputs, scales

// With tiles of 8 * NT rows: blocks of a multiprocessor, segments of a ring.
template <int NT> constexpr int fp8_blocks = NT > 2 ? 1 : 2;
template <int NT> constexpr int fp8_ring = NT == 2 ? 4 : 8;
template <int NT> constexpr int fp8_ring_bytes = SLICES *fp8_ring<NT> *SEGMENT_BYTES;

struct fp8_segment {
    uint4 codes[2];
    float scale[2];
};

// Segment s of the outputs g and g + 8, whose rows these are: a lane copies the sixteen codes of
// each that it multiplies, and some the scales.
static __device__ __forceinline__ void copy_segment(const unsigned char *const row[2], int s,
                                                    uint32_t to) {
    constexpr int EACH = HD_CUDA_FP8_BLOCK / SEGMENT,
                  SCALES = HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK;
    int lane = (int)threadIdx.x % 32, t = lane % 4;
    size_t block = (size_t)(s / EACH) * HD_CUDA_FP8_BYTES;
    int at = SCALES + s % EACH * SEGMENT + t * 16;
#pragma unroll
    for (int i = 0; i < 2; i++)
        copy16(to + (uint32_t)(i * 512 + lane * 16), row[i] + block + at, 16);
    if (t < 2)
        copy4(to + (uint32_t)(16 * SEGMENT + t * 32 + lane / 4 * 4),
              (t == 0 ? row[0] : row[1]) + block + s % EACH / 2 * 4);
}

static __device__ __forceinline__ void read_segment(const unsigned char *from, fp8_segment *to) {
    int lane = (int)threadIdx.x % 32;
    const float *scale = (const float *)(from + 16 * SEGMENT);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to->codes[i] = *(const uint4 *)(from + i * 512 + lane * 16);
        to->scale[i] = scale[i * 8 + lane / 4];
    }
}

// Four codes as BF16: the even bytes, and the odd ones. A code's bits are those of a BF16 value
// that is 2^-120 of it.
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

template <int NT> struct fp8_segments {
    static constexpr int RING = fp8_ring<NT>, BYTES = SEGMENT_BYTES;
    static __device__ __forceinline__ int pieces_of(int n_in) { return n_in / SEGMENT; }
    static __device__ __forceinline__ void copy(const unsigned char *const row[2], int s,
                                                const hd_cuda_mat &, uint32_t to) {
        copy_segment(row, s, to);
    }
};

template <int NT>
__global__ void __launch_bounds__(256, fp8_blocks<NT>)
    mul_fp8(const __grid_constant__ stream_args a) {
    constexpr int ROWS = 8 * NT, RING = fp8_ring<NT>;
    HD_DYNAMIC_SHARED(shared);
    __shared__ float part[SLICES][16][ROWS];
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    unsigned char *ring = shared + warp * RING * SEGMENT_BYTES,
                  *inputs = shared + fp8_ring_bytes<NT>;
    let_next_start();

    stream_place here;
    weights_ahead<fp8_segments<NT>> ahead(shared_address(ring));
    ahead.begin(a, &here);

    int slot = 0;
    for (bool is_new = true; here.is_valid();) {
        const hd_cuda_mul &m = a.m[here.product];
        size_t stride = hd_cuda_input_stride(m.w.n_in);
        if (is_new) {
            load_inputs(m, here.tile, inputs);
            __syncthreads();
        }
        weight_run run = run_of(fp8_segments<NT>::pieces_of(m.w.n_in));
        float total[NT][4] = {};
        for (int s = 0; s < run.n; s++) {
            fp8_segment w;
            copy_wait<RING - 1>();
            __syncwarp(); // the other lanes' copies, too
            read_segment(ring + slot * SEGMENT_BYTES, &w);
            slot = slot + 1 == RING ? 0 : slot + 1;
            __syncwarp();
            ahead.copy(a);
            multiply_segment<NT>(w, inputs + (run.first + s) * SEGMENT * 2, stride, here.tile.n,
                                 total);
        }
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
        is_new = here.next(a);
    }
    copy_wait<0>();
}

template <int NT>
static void launch(const stream_args &a, long long n_item, size_t inputs, cudaStream_t stream) {
    size_t shared = inputs + fp8_ring_bytes<NT>;
    size_t own = shared + SLICES * 16 * 8 * NT * sizeof(float) + FP8_FIXED;
    int n_fit = fp8_blocks<NT> * own > hd_cuda_current().shared_max ? 1 : fp8_blocks<NT>;
    long long n_slot = n_fit * (long long)hd_cuda_current().n_sm;
    auto kernel = mul_fp8<NT>;
    HD_LAUNCH_EARLY(kernel, dim3((unsigned)(n_item < n_slot ? n_item : n_slot)), 256, shared,
                    stream, a);
}

extern "C" int hd_cuda_fp8_rows(int n_in) {
    const size_t stride = hd_cuda_input_stride(n_in), all = hd_cuda_current().shared_max;
    const size_t ring[] = {fp8_ring_bytes<4>, fp8_ring_bytes<2>, fp8_ring_bytes<1>};
    for (int i = 0, rows = 32; i < 3; i++, rows /= 2) {
        size_t each = stride + SLICES * 16 * sizeof(float);
        if ((size_t)rows * each + ring[i] + FP8_FIXED <= all) return rows;
    }
    return 0;
}

// Rows of a dense product's tile; beside experts' tiles two blocks are to have room.
static int dense_rows(const hd_cuda_mul &m, bool is_beside) {
    int n = hd_cuda_fp8_rows(m.w.n_in);
    if (is_beside) {
        size_t fixed = FP8_FIXED + fp8_ring_bytes<2> + SLICES * 16 * 16 * sizeof(float);
        size_t room = hd_cuda_current().shared_max / 2, stride = hd_cuda_input_stride(m.w.n_in);
        int fit = room > fixed + stride ? (int)((room - fixed) / stride) : 1;
        n = fit < n ? fit : n;
        n = n < HD_CUDA_FP8_TILE ? n : HD_CUDA_FP8_TILE;
    }
    return m.n_row < n ? m.n_row : n;
}

// n products that hd_cuda_can_mul_fp8().
extern "C" void hd_cuda_run_mul_fp8(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    stream_args a = {};
    size_t inputs = 0;
    long long n_item = 0;
    int most = 0;
    a.n = n;
    for (int i = 0; i < n; i++) {
        const hd_cuda_mul *from = &m[m[0].tile != nullptr ? n - 1 - i : i];
        int rows =
            from->tile != nullptr ? from->tile_rows : dense_rows(*from, m[0].tile != nullptr);
        a.m[i] = *from, a.rows[i] = rows;
        long long n_tile = (long long)((from->n_row + rows - 1) / rows) * from->w.n_mat;
        if (from->tile != nullptr) n_tile = from->n_tile_max;
        n_item += n_tile * stream_place::n_out_tile(*from);
        size_t own = (size_t)rows * hd_cuda_input_stride(from->w.n_in);
        inputs = own > inputs ? own : inputs;
        most = rows > most ? rows : most;
    }
    if (n_item == 0) return;
    if (most <= 8)
        launch<1>(a, n_item, inputs, stream);
    else if (most <= 16)
        launch<2>(a, n_item, inputs, stream);
    else
        launch<4>(a, n_item, inputs, stream);
}
