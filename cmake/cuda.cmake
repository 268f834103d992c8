# libhadal_cuda.so: the cuda backend, which the program loads at run time (lib/dev/plugin.h). Built where nvcc is,
# for the architectures below, with machine code only: nothing is compiled when the program starts.
set(HADAL_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "Chips that the cuda backend is compiled for")

# What it takes: the compiler, the C++ compiler behind it, and the runtime as a static library.
find_program(NVCC_PROGRAM nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
find_program(CXX_PROGRAM g++)
if(NVCC_PROGRAM AND CXX_PROGRAM)
    set(CUDAToolkit_ROOT ${NVCC_PROGRAM}/../..)
    find_package(CUDAToolkit QUIET)
endif()
if(TARGET CUDA::cudart_static AND NOT HADAL_SANITIZE)
    option(HADAL_CUDA "Build the cuda backend" ON)
else()
    option(HADAL_CUDA "Build the cuda backend" OFF)
endif()
if(NOT HADAL_CUDA)
    message(STATUS "cuda backend: not built (nvcc: ${NVCC_PROGRAM}, g++: ${CXX_PROGRAM}, HADAL_CUDA: ${HADAL_CUDA})")
    return()
endif()
# Kernels of warpgroup products are empty in code for sm_90 without its "a", and would be run.
if(HADAL_CUDA_ARCHITECTURES MATCHES "(^|;)(90(-real|-virtual)?|native|all|all-major)(;|$)")
    message(FATAL_ERROR "HADAL_CUDA_ARCHITECTURES: expected chips by name, sm_90 as 90a, found ${HADAL_CUDA_ARCHITECTURES}")
endif()

set(CMAKE_CUDA_COMPILER ${NVCC_PROGRAM})
set(CMAKE_CUDA_ARCHITECTURES ${HADAL_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
set(CMAKE_CUDA_HOST_COMPILER ${CXX_PROGRAM})
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
find_package(CUDAToolkit REQUIRED)

file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS lib/cuda/*.c lib/cuda/*.cu lib/base/mem.c lib/base/batch.c)
add_library(hadal_cuda SHARED ${CUDA_SOURCES})
set_target_properties(hadal_cuda PROPERTIES
    C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON
    LINK_FLAGS "-Wl,--no-undefined -Wl,--exclude-libs,ALL")
string(REPLACE "-real" "" names "sm_${HADAL_CUDA_ARCHITECTURES}")
string(REPLACE ";" ", sm_" names "${names}")
set_source_files_properties(lib/cuda/backend.c PROPERTIES COMPILE_DEFINITIONS "HD_DEV_CONTRACT=\"${CONTRACT}\"")
target_compile_definitions(hadal_cuda PRIVATE _GNU_SOURCE $<$<CONFIG:Debug>:HD_DEBUG=1>
    "HD_CUDA_ARCHITECTURES=\"${names}\"")
target_include_directories(hadal_cuda PRIVATE lib)
# The profiling interface's header is enough: its library is opened when profiling begins (lib/cuda/profile.c).
find_path(CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include)
if(CUPTI_INCLUDE)
    target_include_directories(hadal_cuda SYSTEM PRIVATE ${CUPTI_INCLUDE})
    target_compile_definitions(hadal_cuda PRIVATE HD_CUDA_CUPTI=1)
endif()
# The same of collectives between GPUs (lib/cuda/comm.c).
find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NCCL_INCLUDE)
    target_include_directories(hadal_cuda SYSTEM PRIVATE ${NCCL_INCLUDE})
    target_compile_definitions(hadal_cuda PRIVATE HD_CUDA_NCCL=1)
endif()
target_compile_options(hadal_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wvla;-Wstrict-prototypes;-Wmissing-prototypes;-Werror;-ffp-contract=off;-g>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-O3;--Werror=all-warnings;-lineinfo>")
target_link_libraries(hadal_cuda PRIVATE CUDA::cudart_static)
