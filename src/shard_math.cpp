#include "shard_math.h"

#include <cmath>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>

namespace sherd::detail::shard_math {

namespace {

bool has_own_loops(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return tensor.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

float* floats(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}

uint16_t* bits(const at::Tensor& tensor) {
  return static_cast<uint16_t*>(tensor.mutable_data_ptr());
}

template <class T>
void sum_on_cpu(const at::Tensor& out, bool accumulate, float scale,
                std::span<const at::Tensor> sources) {
  std::vector<const T*> typed;
  typed.reserve(sources.size());
  for (const at::Tensor& source : sources) {
    typed.push_back(static_cast<const T*>(source.const_data_ptr()));
  }
  kernels::sum_in_rank_order(floats(out), accumulate, scale, typed, out.numel());
}

}  // namespace

void sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                       std::span<const at::Tensor> sources) {
  const at::Tensor& first = sources.front();
  if (has_own_loops(first)) {
    return first.scalar_type() == at::kFloat
               ? sum_on_cpu<float>(out, accumulate, scale, sources)
               : sum_on_cpu<uint16_t>(out, accumulate, scale, sources);
  }
  at::Tensor target = out;
  for (const at::Tensor& source : sources) {
    if (accumulate) {
      target.add_(source.to(at::kFloat).mul_(scale));
    } else {
      target.copy_(source);
      target.mul_(scale);
    }
    accumulate = true;
  }
}

void sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                       std::initializer_list<at::Tensor> sources) {
  sum_in_rank_order(out, accumulate, scale, std::span(sources.begin(), sources.size()));
}

void scale_in_place(const at::Tensor& values, float factor) {
  if (has_own_loops(values)) {
    return kernels::scale_in_place(floats(values), factor, values.numel());
  }
  at::Tensor target = values;
  target.mul_(factor);
}

double sum_of_squares(const at::Tensor& values) {
  if (has_own_loops(values)) {
    return kernels::sum_of_squares(values.const_data_ptr<float>(), values.numel());
  }
  const double norm =
      at::linalg_vector_norm(values, 2, std::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

double sum_of_powers(const at::Tensor& values, double p) {
  if (p == 2.0) {
    return sum_of_squares(values);
  }
  if (values.numel() == 0) {
    return 0.0;
  }
  const double norm =
      at::linalg_vector_norm(values, p, std::nullopt, false, at::kDouble).item<double>();
  return std::isinf(p) ? norm : std::pow(norm, p);
}

void round_into(const at::Tensor& values, const at::Tensor& out) {
  if (has_own_loops(out) && out.scalar_type() == at::kBFloat16) {
    return kernels::to_bfloat16(values.const_data_ptr<float>(),
                                static_cast<uint16_t*>(out.mutable_data_ptr()), values.numel());
  }
  at::Tensor target = out;
  target.copy_(values);
}

namespace {

// The order of operations of torch.optim.AdamW, as in kernels::adamw().
void adamw_with_aten(const AdamWTensors& t, const kernels::AdamWStep& s) {
  const at::Tensor g = at::mul(t.gradient, s.grad_scale);
  at::Tensor exp_avg = t.exp_avg.to(at::kFloat);
  at::Tensor exp_avg_sq = t.exp_avg_sq.to(at::kFloat);
  exp_avg.lerp_(g, s.one_minus_beta1);
  exp_avg_sq.mul_(s.beta2).addcmul_(g, g, s.one_minus_beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(s.bias_correction2_sqrt).add_(s.eps);
  at::Tensor master = t.master;
  master.mul_(s.keep).addcdiv_(exp_avg, denominator, -s.step_size);
  if (t.exp_avg.scalar_type() != at::kFloat) {
    t.exp_avg.copy_(exp_avg);
    t.exp_avg_sq.copy_(exp_avg_sq);
  }
}

}  // namespace

void adamw(const AdamWTensors& t, const kernels::AdamWStep& step) {
  const bool narrow = t.travelling.defined();
  if (!has_own_loops(t.master)) {
    adamw_with_aten(t, step);
    if (narrow) {
      round_into(t.master, t.travelling);
    }
    return;
  }
  const bool narrow_is_bf16 = narrow && t.travelling.scalar_type() == at::kBFloat16;
  auto* travelling = narrow_is_bf16 ? bits(t.travelling) : nullptr;
  const float* gradient = t.gradient.const_data_ptr<float>();
  if (t.exp_avg.scalar_type() == at::kFloat) {
    kernels::adamw(floats(t.master), floats(t.exp_avg), floats(t.exp_avg_sq), gradient, travelling,
                   t.master.numel(), step);
  } else {
    kernels::adamw_bf16_moments(floats(t.master), bits(t.exp_avg), bits(t.exp_avg_sq), gradient,
                                travelling, t.master.numel(), step,
                                static_cast<uint64_t>(t.first_element));
  }
  if (narrow && !narrow_is_bf16) {
    round_into(t.master, t.travelling);
  }
}

}  // namespace sherd::detail::shard_math
