// What the engine builds on, before the engine: a kernel of ours on LibTorch's memory, and NCCL
// through c10d.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAException.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tests/cuda/axpy.h"

namespace {

const at::TensorOptions kOnGpu = at::TensorOptions().device(at::kCUDA);

TEST(CudaToolchain, AKernelOfOursRunsOnMemoryOfLibTorch) {
  const at::Tensor x = at::arange(1000, kOnGpu.dtype(at::kBFloat16));
  at::Tensor y = at::ones({1000}, kOnGpu.dtype(at::kFloat));
  const at::Tensor expected = y + 2.0 * x.to(at::kFloat);

  sherd::test::axpy_on_gpu(2.0F, x.data_ptr(), y.data_ptr<float>(), y.numel());
  C10_CUDA_CHECK(cudaGetLastError());

  EXPECT_TRUE(at::equal(y, expected));
}

TEST(CudaToolchain, NcclReducesOnOneRank) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, 0, 1);
  std::vector<at::Tensor> tensors{at::full({5}, 3.0, kOnGpu)};

  group->allreduce(tensors)->wait();

  EXPECT_TRUE(at::equal(tensors[0].cpu(), at::full({5}, 3.0)));
}

}  // namespace
