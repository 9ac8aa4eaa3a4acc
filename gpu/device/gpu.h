#pragma once
// The part of CUDA that kernels use, on a GPU. tests/emulator/gpu.h has the
// same for threads that a processor plays: what stands in neither, kernels do without.

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

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
/// Has `blocks` blocks of `kThreads` threads run a kernel, and does not wait for them; none for 0.
/// Throws std::runtime_error where the GPU cannot: no code for it, no room.
template <int kThreads, class... Parameters, class... Arguments>
void launch(Stream stream, int64_t blocks, void (*kernel)(Parameters...), Arguments... arguments) {
  if (blocks > 0) {
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments...);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw std::runtime_error(std::string("a kernel does not start: ") +
                               cudaGetErrorString(error));
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

}  // namespace sherd::gpu
