#pragma once
// First values of parameters: kernels::fill_random(), each thread a block of four elements at a
// time. Doubles, as on a CPU, so that roundings to fp32 agree but for about one in ten million.

#include "gpu/block.cuh"
#include "kernels/random.h"

namespace sherd::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// What a launch writes: `blocks` blocks of RandomWords::kPerBlock elements.
struct RandomBlocks {
  float* out = nullptr;
  uint64_t first_block = 0;
  int64_t blocks = 0;
  kernels::RandomWords words;
};

/// Sine and cosine of the double that a CPU takes for 2 π u: sincospi() knows u exactly, and what
/// the CPU's product lost, `lost`, turns its result by as much.
GPU_FUNCTION void sine_cosine_of_turn(double u, double& sine, double& cosine) {
  constexpr double kTwoPi = 6.283185307179586;           // as a double has it
  constexpr double kTwoPiRest = 2.4492935982947064e-16;  // what it has not
  const double angle = kTwoPi * u;
  const double lost = gpu::fused(kTwoPiRest, u, gpu::fused(kTwoPi, u, -angle));
  double s = 0;
  double c = 0;
  gpu::sine_cosine_of_pi(2.0 * u, s, c);
  sine = gpu::fused(-lost, c, s);
  cosine = gpu::fused(lost, s, c);
}

GPU_FUNCTION void write_elements(float (&out)[4], const std::array<uint32_t, 4>& words,
                                 const kernels::Uniform& of) {
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<float>(of.low + (of.high - of.low) * kernels::half_open_unit(words[i]));
  }
}

GPU_FUNCTION void write_elements(float (&out)[4], const std::array<uint32_t, 4>& words,
                                 const kernels::Normal& of) {
  for (int i = 0; i < 4; i += 2) {
    const double radius = gpu::square_root(-2.0 * gpu::logarithm(kernels::open_unit(words[i])));
    double sine = 0;
    double cosine = 0;
    sine_cosine_of_turn(kernels::open_unit(words[i + 1]), sine, cosine);
    out[i] = static_cast<float>(of.mean + of.std * radius * cosine);
    out[i + 1] = static_cast<float>(of.mean + of.std * radius * sine);
  }
}

/// `Of` is kernels::Uniform or kernels::Normal. Bytes of one element: 4 written.
template <class Of, int kThreads>
GPU_KERNEL(kThreads)
random_elements(RandomBlocks all, Of of) {
  for (int64_t block = gpu::block_index() * kThreads + gpu::thread_index(); block < all.blocks;
       block += gpu::block_count() * kThreads) {
    float elements[kernels::RandomWords::kPerBlock];
    write_elements(elements, all.words.block(all.first_block + static_cast<uint64_t>(block)), of);
    store_floats(all.out + block * kernels::RandomWords::kPerBlock, elements);
  }
}

}  // namespace sherd::cuda
