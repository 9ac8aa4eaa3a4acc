// shard_math on a device that has kernels: one in the processor's memory, whose kernels the
// emulator plays, and for which ATen has no operators but those that make memory and read a number.

#include "src/kernels/shard_math.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "sherd/error.h"
#include "src/kernels/kernels.h"
#include "src/storage/movable_storage.h"
#include "tests/support/seeded.h"

namespace sherd::detail {
namespace {

constexpr auto kPlayed = c10::DeviceType::PrivateUse1;

struct PlayedGuard : c10::impl::NoOpDeviceGuardImpl<kPlayed> {
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override { return nullptr; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, PlayedGuard)

const c10::Device kDevice(kPlayed, 0);

at::Tensor empty_played(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout> /*layout*/,
                        std::optional<c10::Device> /*device*/, std::optional<bool> /*pinned*/,
                        std::optional<c10::MemoryFormat> /*format*/) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(size);
  const at::Tensor memory = at::empty(shape, c10::dtype_or_default(dtype));
  return at::for_blob(memory.mutable_data_ptr(), shape)
      .deleter([memory](void* /*data*/) {})
      .options(memory.options().device(kDevice))
      .target_device(kDevice)
      .make_tensor();
}

// The same memory, as the processor's.
at::Tensor on_cpu(const at::Tensor& played) {
  return flat_tensor(played.mutable_data_ptr(), played.numel(), played.scalar_type(), at::kCPU);
}
// What a processor's tensor holds, as the device's.
at::Tensor on_device(const at::Tensor& values) {
  return flat_tensor(values.mutable_data_ptr(), values.numel(), values.scalar_type(), kDevice);
}

at::Scalar item_played(const at::Tensor& number) {
  return on_cpu(number).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty_played);
  library.impl("_local_scalar_dense", item_played);
}

void refuse(const c10::OperatorHandle& what, c10::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, what.operator_name().name);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

class ShardMathOnADevice : public testing::Test {
 protected:
  static constexpr int64_t kNumel = 301;
  ShardMathOnADevice() { set_device_kernels(kPlayed, &cuda::device_kernels()); }
  ~ShardMathOnADevice() override { set_device_kernels(kPlayed, nullptr); }

  static at::Tensor values(uint64_t seed, c10::ScalarType dtype = at::kFloat) {
    return test::seeded(seed, [&] { return at::randn({kNumel}).to(dtype); });
  }
};

double squares_of(const at::Tensor& values) {
  return shard_math::sum_of_squares_on_device(values).item<double>();
}

TEST_F(ShardMathOnADevice, SumsByItsKernels) {
  for (const auto of_sum : {at::kFloat, at::kBFloat16}) {
    for (const auto of_sources : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor a = values(1, of_sources), b = values(2, of_sources);
      const at::Tensor expected = values(3, of_sum), found = values(3, of_sum);
      shard_math::sum_in_rank_order(expected, true, 0.3F, {a, b});
      EXPECT_TRUE(std::isnan(shard_math::sum_in_rank_order(on_device(found), true, 0.3F,
                                                           {on_device(a), on_device(b)})));
      EXPECT_TRUE(at::equal(found, expected));

      const std::vector<at::Tensor> sources = {on_device(b), on_device(a)};
      shard_math::sum_in_rank_order(expected, false, 0.5F, {b, a});
      const double squares = squares_of(expected);
      const at::Tensor on = on_device(found);
      shard_math::sum_in_rank_order(on, false, 0.5F, sources);
      EXPECT_TRUE(at::equal(found, expected));
      EXPECT_NEAR(squares_of(on), squares, 1e-6 * squares);
    }
  }
}

// More ranks than a launch lists, whose pieces lie one behind the other in what was received.
TEST_F(ShardMathOnADevice, SumsPiecesOfManyRanksByItsKernels) {
  constexpr int64_t kRanks = 300;
  for (const auto of_sum : {at::kFloat, at::kBFloat16}) {
    for (const auto of_sources : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor received = test::seeded(7, [&] {
        return at::randn({kRanks, kNumel}).to(of_sources);
      });
      std::vector<at::Tensor> pieces, pieces_on_device;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        pieces.push_back(received[rank]);
        pieces_on_device.push_back(on_device(received[rank]));
      }
      for (const bool accumulate : {false, true}) {
        const at::Tensor expected = values(3, of_sum), found = values(3, of_sum);
        shard_math::sum_in_rank_order(expected, accumulate, 0.3F, pieces);
        shard_math::sum_in_rank_order(on_device(found), accumulate, 0.3F, pieces_on_device);
        EXPECT_TRUE(at::equal(found, expected)) << of_sum << " of " << of_sources;
      }
    }
  }
}

TEST_F(ShardMathOnADevice, ScalesRoundsSplitsAndJoinsByItsKernels) {
  const at::Tensor expected = values(1), found = values(1);
  shard_math::scale_in_place(expected, 0.3F);
  shard_math::scale_in_place(on_device(found), 0.3F);
  EXPECT_TRUE(at::equal(found, expected));

  const at::Tensor rounded = at::empty({kNumel}, at::kBFloat16);
  shard_math::round_into(on_device(found), on_device(rounded));
  EXPECT_TRUE(at::equal(rounded, found.to(at::kBFloat16)));

  const at::Tensor travelling = at::empty({kNumel}, at::kBFloat16);
  const at::Tensor low = at::empty({kNumel}, at::kShort);
  shard_math::split(on_device(found), on_device(travelling), on_device(low));
  EXPECT_TRUE(at::equal(travelling, rounded));
  EXPECT_TRUE(at::equal(on_cpu(shard_math::join(on_device(travelling), on_device(low))), found));
}

// Of AdamW's tensors, each that there is.
shard_math::AdamWTensors moved(shard_math::AdamWTensors tensors) {
  for (at::Tensor* tensor :
       {&tensors.master, &tensors.exp_avg, &tensors.exp_avg_sq, &tensors.gradient,
        &tensors.travelling, &tensors.low, &tensors.grad_scale}) {
    if (tensor->defined()) {
      *tensor = on_device(*tensor);
    }
  }
  return tensors;
}

TEST_F(ShardMathOnADevice, UpdatesByItsKernelsWithAFactorOfTheDevice) {
  const auto tensors = [] {
    return shard_math::AdamWTensors{.master = values(1),
                                    .exp_avg = values(2, at::kBFloat16),
                                    .exp_avg_sq = values(3, at::kBFloat16).abs(),
                                    .gradient = values(4),
                                    .travelling = at::empty({kNumel}, at::kBFloat16),
                                    .first_element = 5};
  };
  kernels::AdamWStep step{.step_size = 0.1F,
                          .one_minus_beta1 = 0.1F,
                          .beta2 = 0.9F,
                          .one_minus_beta2 = 0.1F,
                          .grad_scale = 0.3F,
                          .number = 3};
  const shard_math::AdamWTensors expected = tensors();
  shard_math::adamw(expected, step);
  const auto expect_same = [&](const shard_math::AdamWTensors& found) {
    EXPECT_TRUE(at::equal(found.master, expected.master));
    EXPECT_TRUE(at::equal(found.travelling, expected.travelling));
    EXPECT_TRUE(at::equal(found.exp_avg, expected.exp_avg));
    EXPECT_TRUE(at::equal(found.exp_avg_sq, expected.exp_avg_sq));
  };
  shard_math::AdamWTensors by_value = tensors();
  shard_math::adamw(moved(by_value), step);
  expect_same(by_value);

  step.grad_scale = NAN;
  for (const bool on_a_device : {false, true}) {
    shard_math::AdamWTensors by_tensor = tensors();
    by_tensor.grad_scale = at::scalar_tensor(0.3F);
    shard_math::adamw(on_a_device ? moved(by_tensor) : by_tensor, step);
    expect_same(by_tensor);
  }
}

TEST_F(ShardMathOnADevice, FindsTheFactorOfClipping) {
  for (const double squares : {0.0, 0.25, 9.0, double{INFINITY}, double{NAN}}) {
    const double wanted = 2.0 / (std::sqrt(squares) + 1e-6);
    const float expected = wanted < 1 ? static_cast<float>(wanted) : 1.0F;
    const at::Tensor sum = at::scalar_tensor(squares, at::kDouble);
    EXPECT_EQ(shard_math::clip_factor_on_device(on_device(sum), 2.0).item<float>(), expected);
  }
}

TEST_F(ShardMathOnADevice, RefusesADeviceWithoutKernels) {
  const at::Tensor memory = values(1);
  const at::Tensor values_there = on_device(memory);
  set_device_kernels(kPlayed, nullptr);
  EXPECT_THROW(shard_math::scale_in_place(values_there, 2), Error);
}

}  // namespace
}  // namespace sherd::detail
