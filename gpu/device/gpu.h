#pragma once
// The part of CUDA that kernels use, on a GPU. tests/emulator/gpu.h has the
// same for threads that a processor plays: what stands in neither, kernels do without.

#include <cstdint>
#include <cstring>
#include <limits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "gpu/launch_failure.h"

/// A kernel of blocks of so many threads; and of how many blocks at once, at least, a
/// multiprocessor has the registers.
#define GPU_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
/// What kernels call.
#define GPU_FUNCTION __device__ __forceinline__
/// `count` values of a type that a block's threads share, undefined at first.
#define GPU_SHARED(type, name, count) __shared__ type name[count]

namespace sherd::gpu {

using BFloat16 = __nv_bfloat16;
using Half = __half;

inline constexpr int kWarp = 32;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

GPU_FUNCTION float to_float(float value) {
  return value;
}
GPU_FUNCTION float to_float(BFloat16 value) {
  return __bfloat162float(value);
}
GPU_FUNCTION float to_float(Half value) {
  return __half2float(value);
}
/// To the nearest, ties to even.
template <class T>
GPU_FUNCTION T rounded(float value);
template <>
GPU_FUNCTION float rounded<float>(float value) {
  return value;
}
template <>
GPU_FUNCTION BFloat16 rounded<BFloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
GPU_FUNCTION Half rounded<Half>(float value) {
  return __float2half_rn(value);
}

/// Value `i` of a word of one or two values; the lower half is value 0.
template <class T>
GPU_FUNCTION float float_in(uint32_t word, int i);
template <>
GPU_FUNCTION float float_in<float>(uint32_t word, int /*i*/) {
  return __uint_as_float(word);
}
template <>
GPU_FUNCTION float float_in<BFloat16>(uint32_t word, int i) {
  return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000U);
}
template <>
GPU_FUNCTION float float_in<Half>(uint32_t word, int i) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(i == 0 ? word : word >> 16)));
}

/// One value of global memory.
template <class T>
GPU_FUNCTION T load_value(const T* from) {
  return *from;
}
template <class T>
GPU_FUNCTION void store_value(T* to, T value) {
  *to = value;
}
/// A value that all threads of a warp read at once: it is moved once for all of them.
template <class T>
GPU_FUNCTION T load_for_warp(const T* from) {
  return *from;
}

/// Sixteen bytes at once, of an address that is a multiple of 16: a word for the compiler, whatever
/// is in it.
template <class Pack>
GPU_FUNCTION Pack load_16_bytes(const void* from) {
  const uint4 word = *static_cast<const uint4*>(from);
  Pack pack;
  memcpy(&pack, &word, sizeof(word));
  return pack;
}
template <class Pack>
GPU_FUNCTION void store_16_bytes(void* to, const Pack& pack) {
  uint4 word;
  memcpy(&word, &pack, sizeof(word));
  __stwb(static_cast<uint4*>(to), word);
}

/// Kernels that are launched on one run one after the other.
using Stream = cudaStream_t;
/// One that is known by its address alone.
inline Stream stream_at(void* address) {
  return static_cast<Stream>(address);
}
/// The exit code of a launch that failed. What is neither memory nor the machine's is a fault of a
/// kernel, and so a bug.
inline ExitCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return ExitCode::OutOfMemory;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
      return ExitCode::Unavailable;
    default:
      return ExitCode::Internal;
  }
}
/// Launches `blocks` blocks of `kThreads` threads and does not wait for them; nothing for 0 blocks.
/// `name`: the kernel's, for messages. Throws Error where the CUDA runtime reports a fault.
template <int kThreads, class... Parameters, class... Arguments>
void launch(const char* name, Stream stream, int64_t blocks, void (*kernel)(Parameters...),
            Arguments... arguments) {
  if (blocks > 0) {
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments...);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw launch_failure(code_of(error), name, cudaGetErrorString(error));
    }
  }
}

GPU_FUNCTION int thread_index() {
  return static_cast<int>(threadIdx.x);
}
GPU_FUNCTION int64_t block_index() {
  return blockIdx.x;
}
GPU_FUNCTION int64_t block_count() {
  return gridDim.x;
}

/// Returns when all threads of the block have come.
GPU_FUNCTION void sync_block() {
  __syncthreads();
}
/// The value of the thread of this warp whose number differs in these bits. All of a warp's threads
/// call it.
GPU_FUNCTION float shuffle_xor(float value, int bits) {
  return __shfl_xor_sync(0xffffffffU, value, bits);
}
GPU_FUNCTION double shuffle_xor(double value, int bits) {
  return __shfl_xor_sync(0xffffffffU, value, bits);
}

GPU_FUNCTION float exponential(float value) {
  return __expf(value);
}
GPU_FUNCTION float logarithm(float value) {
  return __logf(value);
}
GPU_FUNCTION float square_root(float value) {
  return __fsqrt_rn(value);
}
GPU_FUNCTION double square_root(double value) {
  return __dsqrt_rn(value);
}
GPU_FUNCTION double logarithm(double value) {
  return ::log(value);
}
/// a × b + c, rounded once.
GPU_FUNCTION double fused(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
/// Of π × value.
GPU_FUNCTION void sine_cosine_of_pi(double value, double& sine, double& cosine) {
  ::sincospi(value, &sine, &cosine);
}

/// a × b + c, rounded once.
GPU_FUNCTION float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
/// 1 ÷ value and 1 ÷ √value within a few units of the last place, for normal values.
GPU_FUNCTION float reciprocal_estimate(float value) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(value));
  return estimate;
}
GPU_FUNCTION float inverse_root_estimate(float value) {
  float estimate;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(value));
  return estimate;
}
/// The upper 16 bits of each, those of `first` below.
GPU_FUNCTION uint32_t upper_halves(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

}  // namespace sherd::gpu
