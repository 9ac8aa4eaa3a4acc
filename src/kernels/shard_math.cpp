#include "kernels/shard_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/empty.h>
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

// What a thread takes at a time: whole blocks of the loops, and enough for stores that bypass the
// caches. The same for any number of threads, and so are sums.
constexpr int64_t kPart = int64_t{1} << 19;

int64_t part_count(int64_t numel) {
  return (numel + kPart - 1) / kPart;
}

// fn(part, begin, numel) for each part, dealt out to the threads.
template <class Fn>
void for_parts(int64_t numel, const Fn& fn) {
  at::parallel_for(0, part_count(numel), 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      fn(part, part * kPart, std::min(kPart, numel - part * kPart));
    }
  });
}

// Of what fn(begin, numel) returns for each part, added up in the order of parts.
template <class Fn>
double sum_over_parts(int64_t numel, const Fn& fn) {
  std::vector<double> sums(static_cast<size_t>(part_count(numel)));
  for_parts(numel, [&](int64_t part, int64_t begin, int64_t count) {
    sums[static_cast<size_t>(part)] = fn(begin, count);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <class T>
double sum_on_cpu(const at::Tensor& out, bool accumulate, float scale,
                  std::span<const at::Tensor> sources) {
  float* sums = floats(out);
  return sum_over_parts(out.numel(), [&](int64_t begin, int64_t numel) {
    std::vector<const T*> typed;
    typed.reserve(sources.size());
    for (const at::Tensor& source : sources) {
      typed.push_back(static_cast<const T*>(source.const_data_ptr()) + begin);
    }
    return kernels::sum_in_rank_order(sums + begin, accumulate, scale, typed, numel);
  });
}

}  // namespace

double sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
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
      target.add_(at::mul(source.to(at::kFloat), scale));
    } else {
      target.copy_(source);
      target.mul_(scale);
    }
    accumulate = true;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                         std::initializer_list<at::Tensor> sources) {
  return sum_in_rank_order(out, accumulate, scale, std::span(sources.begin(), sources.size()));
}

void scale_in_place(const at::Tensor& values, float factor) {
  if (has_own_loops(values)) {
    float* all = floats(values);
    return for_parts(values.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
      kernels::scale_in_place(all + begin, factor, numel);
    });
  }
  at::Tensor target = values;
  target.mul_(factor);
}

double sum_of_squares(const at::Tensor& values) {
  if (has_own_loops(values)) {
    const auto* all = values.const_data_ptr<float>();
    return sum_over_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      return kernels::sum_of_squares(all + begin, numel);
    });
  }
  const double norm =
      at::linalg_vector_norm(values, 2, std::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

double sum_of_powers(const at::Tensor& values, double p) {
  if (values.numel() == 0) {
    return 0.0;
  }
  const double norm =
      at::linalg_vector_norm(values, p, std::nullopt, false, at::kDouble).item<double>();
  return std::isinf(p) ? norm : std::pow(norm, p);
}

namespace {

kernels::SplitMaster halves_of(const at::Tensor& travelling, const at::Tensor& low) {
  return {bits(travelling), low.mutable_data_ptr<int16_t>()};
}

// As kernels::split(), of fp32 values as their bits.
void settle(at::Tensor values) {
  values.sub_(at::bitwise_and(values, 0x1ffff).eq(0x8000).to(at::kInt));
}

// A new int32 tensor: the bits of bf16 values where fp32 has them.
at::Tensor in_place_of_high(const at::Tensor& travelling) {
  return at::bitwise_left_shift(travelling.view(at::kShort).to(at::kInt), 16);
}

}  // namespace

void round_into(const at::Tensor& values, const at::Tensor& out) {
  if (has_own_loops(out) && out.scalar_type() == at::kBFloat16) {
    const auto* all = values.const_data_ptr<float>();
    auto* rounded = static_cast<uint16_t*>(out.mutable_data_ptr());
    return for_parts(values.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
      kernels::to_bfloat16(all + begin, rounded + begin, numel);
    });
  }
  at::Tensor target = out;
  target.copy_(values);
}

void split(const at::Tensor& values, const at::Tensor& travelling, const at::Tensor& low) {
  if (has_own_loops(travelling)) {
    const kernels::SplitMaster halves = halves_of(travelling, low);
    const auto* all = values.const_data_ptr<float>();
    return for_parts(values.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
      kernels::split(all + begin, halves.from(begin), numel);
    });
  }
  const at::Tensor whole = values.clone();
  settle(whole.view(at::kInt));
  at::Tensor high = travelling;
  high.copy_(whole);
  at::Tensor distance = whole.view(at::kInt).sub(in_place_of_high(travelling));
  distance.masked_fill_(whole.ne(whole), 0);  // NaN
  at::Tensor rest = low;
  rest.copy_(distance);
}

at::Tensor join(const at::Tensor& travelling, const at::Tensor& low) {
  if (has_own_loops(travelling)) {
    at::Tensor values = at::empty(travelling.sizes(), travelling.options().dtype(at::kFloat));
    const kernels::SplitMaster halves = halves_of(travelling, low);
    for_parts(values.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
      kernels::join(halves.from(begin), floats(values) + begin, numel);
    });
    return values;
  }
  return in_place_of_high(travelling).add_(low).view(at::kFloat);
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

// One step of the elements from `begin`: with(moments…) of either dtype, as pointers there.
template <class Wide, class Narrow>
void with_moments(const AdamWTensors& t, int64_t begin, const Wide& wide, const Narrow& narrow) {
  if (t.exp_avg.scalar_type() == at::kFloat) {
    wide(floats(t.exp_avg) + begin, floats(t.exp_avg_sq) + begin);
  } else {
    narrow(bits(t.exp_avg) + begin, bits(t.exp_avg_sq) + begin,
           static_cast<uint64_t>(t.first_element + begin));
  }
}

// `travelling` is null where the loops do not write it.
void adamw_on_cpu(const AdamWTensors& t, uint16_t* travelling, const kernels::AdamWStep& step) {
  const auto* gradient = t.gradient.const_data_ptr<float>();
  for_parts(t.master.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
    float* master = floats(t.master) + begin;
    uint16_t* rounded = travelling == nullptr ? nullptr : travelling + begin;
    with_moments(
        t, begin,
        [&](float* m, float* v) {
          kernels::adamw(master, m, v, gradient + begin, rounded, numel, step);
        },
        [&](uint16_t* m, uint16_t* v, uint64_t first) {
          kernels::adamw_bf16_moments(master, m, v, gradient + begin, rounded, numel, step, first);
        });
  });
}

void adamw_split_on_cpu(const AdamWTensors& t, const kernels::AdamWStep& step) {
  const auto* gradient = t.gradient.const_data_ptr<float>();
  const kernels::SplitMaster halves = halves_of(t.travelling, t.low);
  for_parts(t.low.numel(), [&](int64_t /*part*/, int64_t begin, int64_t numel) {
    const kernels::SplitMaster master = halves.from(begin);
    with_moments(
        t, begin,
        [&](float* m, float* v) {
          kernels::adamw_split(master, m, v, gradient + begin, numel, step);
        },
        [&](uint16_t* m, uint16_t* v, uint64_t first) {
          kernels::adamw_split_bf16_moments(master, m, v, gradient + begin, numel, step, first);
        });
  });
}

// `settles`: see [Note: Masters in two halves].
void adamw_of_whole(const AdamWTensors& t, const kernels::AdamWStep& step, bool settles) {
  if (settles) {
    settle(t.master.view(at::kInt));
  }
  adamw_with_aten(t, step);
  if (settles) {
    settle(t.master.view(at::kInt));
  }
}

// Of masters in two halves.
void adamw_split(const AdamWTensors& t, const kernels::AdamWStep& step) {
  if (has_own_loops(t.travelling)) {
    return adamw_split_on_cpu(t, step);
  }
  AdamWTensors whole = t;
  whole.master = join(t.travelling, t.low);
  adamw_with_aten(whole, step);
  split(whole.master, t.travelling, t.low);
}

}  // namespace

void adamw(const AdamWTensors& t, const kernels::AdamWStep& step) {
  if (t.low.defined()) {
    return adamw_split(t, step);
  }
  const bool narrow = t.travelling.defined();
  const bool narrow_is_bf16 = narrow && t.travelling.scalar_type() == at::kBFloat16;
  if (!has_own_loops(t.master)) {
    adamw_of_whole(t, step, narrow_is_bf16);
    if (narrow) {
      round_into(t.master, t.travelling);
    }
    return;
  }
  adamw_on_cpu(t, narrow_is_bf16 ? bits(t.travelling) : nullptr, step);
  if (narrow && !narrow_is_bf16) {
    round_into(t.master, t.travelling);
  }
}

}  // namespace sherd::detail::shard_math
