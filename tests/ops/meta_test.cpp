// On the meta device the operators allocate what they do on the CPU, number by number and in the
// same order: so a step can be measured before there is memory for it.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/bias_gelu.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/with_isa.h"

namespace sherd::ops {
namespace {

// Smaller ones are numbers that are read, not tensors that are kept.
constexpr std::size_t kLeastBytes = 1024;

// Writes down what is asked of a device's own allocator, while it is told to.
class Recorder final : public c10::Allocator {
 public:
  static Recorder& of(c10::DeviceType device) {
    static Recorder& cpu = install(c10::kCPU);
    static Recorder& meta = install(c10::kMeta);
    return device == c10::kCPU ? cpu : meta;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (records_ && bytes >= kLeastBytes) {
      bytes_.push_back(bytes);
    }
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }
  std::vector<std::size_t> during(const std::function<void()>& work) {
    bytes_.clear();
    records_ = true;
    work();
    records_ = false;
    return bytes_;
  }

 private:
  explicit Recorder(c10::Allocator* inner) : inner_(inner) {}
  static Recorder& install(c10::DeviceType device) {
    auto* recorder = new Recorder(c10::GetAllocator(device));  // LibTorch keeps it for good
    c10::SetAllocator(device, recorder, /*priority=*/100);
    return *recorder;
  }

  c10::Allocator* inner_;
  std::vector<std::size_t> bytes_;
  bool records_ = false;
};

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;  // of floating-point leaves
  std::function<at::Tensor(const Tensors&)> compute;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

at::Tensor ids_like(const at::Tensor& tensor, int64_t count) {
  return at::arange(count, tensor.options().dtype(at::kLong).requires_grad(false));
}

Case attention_case(const std::string& name, int64_t heads, int64_t key_heads, int64_t size) {
  return {name,
          {{150, heads, size}, {150, key_heads, size}, {150, key_heads, size}},
          [](const Tensors& in) {
            return attention(in[0], in[1], in[2],
                             Documents::of_lengths({std::vector<int64_t>{130, 20}}));
          }};
}

Case head_case(const std::string& name, int64_t chunk) {
  return {name, {{96, 32}, {500, 32}}, [chunk](const Tensors& in) {
            return linear_cross_entropy(in[0], in[1], ids_like(in[0], 96), chunk);
          }};
}

std::vector<Case> cases() {
  return {
      {"linear", {{40, 48}, {64, 48}}, [](const Tensors& in) { return ops::linear(in[0], in[1]); }},
      {"linear_with_bias",
       {{40, 48}, {64, 48}, {64}},
       [](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); }},
      {"rms_norm_and_linear",
       {{40, 48}, {40, 48}, {48}, {64, 48}, {64, 48}},
       [](const Tensors& in) {
         const NormalisedSum sum = add_rms_norm(in[0], in[1], in[2], 1e-5);
         return linear_after_norm(sum.normalised, in[3]) + ops::linear(sum.sum, in[4]);
       }},
      {"layer_norm",
       {{40, 48}, {48}, {48}},
       [](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); }},
      {"embedding",
       {{300, 48}},
       [](const Tensors& in) { return ops::embedding(ids_like(in[0], 40), in[0]); }},
      {"swiglu_linear",
       {{40, 96}, {40, 96}, {48, 96}},
       [](const Tensors& in) { return swiglu_linear(in[0], in[1], in[2]); }},
      {"two_updates_of_one_input",
       {{40, 48}, {48}, {64, 48}, {64, 48}, {4, 48}, {64, 4}, {4, 48}, {64, 4}},
       [](const Tensors& in) {
         const Tensors out = linears_after_norm(
             rms_norm(in[0], in[1], 1e-5), {in[2].detach(), in[3].detach()}, {},
             {{.A = in[4], .B = in[5], .scale = 2}, {.A = in[6], .B = in[7], .scale = 2}});
         return out[0] + out[1];
       }},
      {"swiglu_linear_with_update",
       {{40, 96}, {40, 96}, {48, 96}, {4, 96}, {48, 4}},
       [](const Tensors& in) {
         return swiglu_linear(in[0], in[1], in[2].detach(), {.A = in[3], .B = in[4], .scale = 2});
       }},
      {"update_with_dropout",
       {{40, 48}, {64, 48}, {4, 48}, {64, 4}},
       [](const Tensors& in) {
         const Dropout dropout{0.5, ids_like(in[0], 40), 7};
         return ops::linear(in[0], in[1].detach(), std::nullopt,
                            {.A = in[2], .B = in[3], .scale = 2, .dropout = dropout});
       }},
      {"bias_gelu", {{40, 96}, {96}}, [](const Tensors& in) { return bias_gelu(in[0], in[1]); }},
      {"rotary",
       {{1, 4, 60, 64}},
       [](const Tensors& in) {
         const auto table = in[0].options().dtype(at::kFloat).requires_grad(false);
         return rotary(in[0], {at::ones({60, 32}, table), at::ones({60, 32}, table)});
       }},
      attention_case("attention", 6, 2, 64),
      attention_case("attention_of_small_heads", 6, 3, 16),
      head_case("loss_in_one_chunk", 512),
      head_case("loss_in_several_chunks", 16),
  };
}

std::vector<std::size_t> allocated(const Case& one, c10::Device device, c10::ScalarType dtype) {
  Tensors leaves;
  for (const auto& shape : one.shapes) {
    leaves.push_back(at::full(shape, 0.01, at::device(device).dtype(dtype)).requires_grad_());
  }
  return Recorder::of(device.type()).during([&] {
    const at::Tensor output = one.compute(leaves);
    output.backward(at::ones_like(output));
  });
}

// On paths whose products are MKL's: what oneDNN takes for its own is not known on the meta device.
class OnMeta : public testing::TestWithParam<Case> {
 private:
  WithIsa path_{std::min(cpu::isa(), cpu::Isa::Avx2)};
};
std::string name_of(const testing::TestParamInfo<Case>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Operators, OnMeta, testing::ValuesIn(cases()), name_of);

TEST_P(OnMeta, AllocatesWhatItDoesOnTheCpu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto on_cpu = allocated(GetParam(), c10::kCPU, dtype);
    EXPECT_FALSE(on_cpu.empty());
    EXPECT_EQ(allocated(GetParam(), c10::kMeta, dtype), on_cpu) << dtype;
  }
}

}  // namespace
}  // namespace sherd::ops
