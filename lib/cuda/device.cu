// What launchers know of the device, and what is done once for a kernel.
#include "cuda/device.cuh"

#include <cudaTypedefs.h>
#include <pthread.h>

// ---- the device ----

static hd_cuda_device current;
static pthread_once_t current_once = PTHREAD_ONCE_INIT;
static thread_local bool is_in_turn; // kernels are launched one after another

static void find_current(void) {
    int shared = 0, level = 0;
    (void)cudaDeviceGetAttribute(&current.n_sm, cudaDevAttrMultiProcessorCount, 0);
    (void)cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    current.shared_max = (size_t)shared;
    current.has_early = hd_cuda_check_image(&level) == cudaSuccess && level >= 90;
}

const hd_cuda_device &hd_cuda_current(void) {
    (void)pthread_once(&current_once, find_current);
    return current;
}

extern "C" void hd_cuda_launch_in_turn(bool on) { is_in_turn = on; }

bool hd_cuda_launches_early(void) { return hd_cuda_current().has_early && !is_in_turn; }

// ---- shared memory ----

// Kernels that may have as much as there is, by device: an open hash. There are some hundred
// kernels, of which a program launches some tens.
struct allowance {
    const void *kernel;
    int device;
};
static allowance allowed[4096];
static int n_allowed;
static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;

// Where a kernel is kept, or the free place where it would be.
static allowance *place_of(const void *kernel, int device) {
    constexpr size_t N = sizeof allowed / sizeof allowed[0];
    size_t at = ((uintptr_t)kernel >> 4) + (size_t)device * 31;
    while (allowed[at % N].kernel != nullptr &&
           (allowed[at % N].kernel != kernel || allowed[at % N].device != device))
        at++;
    return &allowed[at % N];
}

static cudaError_t allow(const void *kernel) {
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, kernel);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(hd_cuda_current().shared_max - a.sharedSizeBytes));
}

void hd_cuda_allow_shared(const void *kernel) {
    int device = 0;
    (void)cudaGetDevice(&device);
    pthread_mutex_lock(&allowed_lock);
    allowance *a = place_of(kernel, device);
    bool has_room = n_allowed < (int)(sizeof allowed / sizeof allowed[0]) - 1;
    if (a->kernel == nullptr && allow(kernel) == cudaSuccess && has_room) {
        *a = {kernel, device};
        n_allowed++;
    }
    pthread_mutex_unlock(&allowed_lock);
}

// ---- tensor maps ----

static PFN_cuTensorMapEncodeTiled_v12000 encode;
static cudaError_t encode_error;
static pthread_once_t encode_once = PTHREAD_ONCE_INIT;

static void find_encode(void) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    encode_error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode,
                                                    12000, cudaEnableDefault, &found);
    if (encode_error == cudaSuccess && found != cudaDriverEntryPointSuccess)
        encode_error = cudaErrorNotSupported;
}

cudaError_t hd_cuda_encode_map(const hd_cuda_box_map &b, CUtensorMap *map) {
    (void)pthread_once(&encode_once, find_encode);
    if (encode_error != cudaSuccess) return encode_error;
    cuuint32_t box[3] = {(cuuint32_t)(128 / b.each), (cuuint32_t)b.n_row, 1}, step[3] = {1, 1, 1};
    cuuint64_t size[3] = {b.row_bytes / b.each, b.n_out, b.n_mat};
    cuuint64_t stride[2] = {b.row_bytes, b.mat_bytes};
    CUresult r =
        encode(map, b.each == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               3, (void *)b.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
