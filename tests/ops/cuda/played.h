#pragma once
// Kernels of ops/cuda, played on the processor, on tensors; and what fp64 makes of the same.

#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/emulator/emulator.h"
#include "tests/ops/cuda/tested.h"

namespace sherd::ops::cuda::test {

template <class T>
inline constexpr c10::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

/// Seeded, in T, so that fp64 takes the same values.
template <class T>
at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator).to(kDtype<T>);
}

/// NaN everywhere: what is not written shows.
template <class T>
at::Tensor unwritten(at::IntArrayRef shape) {
  return at::full(shape, NAN, at::TensorOptions(kDtype<T>));
}

template <class T>
T* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

/// As near to fp64 as T rounds, where a sum of some values was taken on the way.
template <class T>
void expect_near(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  const double relative = std::is_same_v<T, float>       ? 1e-5
                          : std::is_same_v<T, c10::Half> ? 2e-3
                                                         : 1.2e-2;
  const double largest = expected.abs().max().item<double>();
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, relative, relative * largest)) << what;
}

/// The documents' bounds that what stands for flash attention was given since they were cleared.
std::vector<at::Tensor>& given_bounds();

/// Plays a kernel in several orders of threads: each has the same bits in `outputs()`.
inline std::set<emulator::Barrier> play(int64_t blocks, int threads,
                                        const std::function<void()>& kernel,
                                        const std::vector<at::Tensor>& outputs) {
  std::set<emulator::Barrier> met;
  std::vector<at::Tensor> first;
  for (const uint32_t seed : {1U, 2U, 3U}) {
    for (const at::Tensor& output : outputs) {
      output.fill_(NAN);
    }
    met = emulator::play(blocks, threads, kernel, {.seed = seed});
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (seed == 1) {
        first.push_back(outputs[i].clone());
      } else {
        EXPECT_TRUE(at::equal(first[i].view(at::kByte), outputs[i].view(at::kByte)))
            << "output " << i << " depends on the order";
      }
    }
  }
  return met;
}

}  // namespace sherd::ops::cuda::test
