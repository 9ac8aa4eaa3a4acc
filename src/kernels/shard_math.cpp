#include "kernels/shard_math.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

namespace {

std::atomic<const kernels::DeviceKernels*>& kernels_for(c10::DeviceType type) {
  static std::array<std::atomic<const kernels::DeviceKernels*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>
      all{};
  return all.at(static_cast<size_t>(type));
}

}  // namespace

void set_device_kernels(c10::DeviceType type, const kernels::DeviceKernels* kernels) {
  kernels_for(type) = kernels;
}

bool has_device_kernels(c10::DeviceType type) {
  return kernels_for(type) != nullptr;
}

namespace shard_math {

namespace {

// The kernels for a tensor in fp32 or bf16, if any are registered, and their stream. Makes the
// tensor's device the thread's current one.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& tensor) {
    const auto dtype = tensor.scalar_type();
    if (dtype == at::kFloat || dtype == at::kBFloat16) {
      kernels_ = kernels_for(tensor.device().type()).load();
    }
    if (kernels_ != nullptr) {
      guard_.reset_device(tensor.device());
      const c10::impl::VirtualGuardImpl device(tensor.device().type());
      stream_ = device.getStream(tensor.device()).native_handle();
    }
  }
  [[nodiscard]] explicit operator bool() const { return kernels_ != nullptr; }
  [[nodiscard]] const kernels::DeviceKernels* operator->() const { return kernels_; }
  [[nodiscard]] kernels::Stream stream() const { return stream_; }

 private:
  const kernels::DeviceKernels* kernels_ = nullptr;
  c10::OptionalDeviceGuard guard_;
  kernels::Stream stream_ = nullptr;
};

bool has_own_loops(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return tensor.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

// A plan's tensors have no values, and ATen's operators would take memory.
bool is_planned(const at::Tensor& tensor) {
  return tensor.is_meta();
}

float* floats(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}

uint16_t* bits(const at::Tensor& tensor) {
  return static_cast<uint16_t*>(tensor.mutable_data_ptr());
}

// In own loops and kernels: fp32 or bf16, from an element on.
kernels::Values values_of(const at::Tensor& tensor, int64_t begin) {
  if (tensor.scalar_type() == at::kFloat) {
    return floats(tensor) + begin;
  }
  return bits(tensor) + begin;
}
kernels::ConstValues const_values_of(const at::Tensor& tensor, int64_t begin) {
  const void* all = tensor.const_data_ptr();
  if (tensor.scalar_type() == at::kFloat) {
    return static_cast<const float*>(all) + begin;
  }
  return static_cast<const uint16_t*>(all) + begin;
}

// What a thread takes at a time, whatever the number of threads: so sums are always the same.
constexpr int64_t kPart = int64_t{1} << 19;

int64_t part_count(int64_t numel) {
  return (numel + kPart - 1) / kPart;
}

// fn(begin, numel) for each part, dealt out to the threads.
template <class Fn>
void for_parts(int64_t numel, const Fn& fn) {
  at::parallel_for(0, part_count(numel), 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      fn(part * kPart, std::min(kPart, numel - part * kPart));
    }
  });
}

// The sum of fn(begin, numel) over the parts, in their order.
template <class Fn>
double sum_over_parts(int64_t numel, const Fn& fn) {
  std::vector<double> sums(static_cast<size_t>(part_count(numel)));
  for_parts(numel, [&](int64_t begin, int64_t count) {
    sums[static_cast<size_t>(begin / kPart)] = fn(begin, count);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// From an element on.
template <class T>
std::vector<const T*> typed(at::TensorList sources, int64_t begin) {
  std::vector<const T*> all;
  all.reserve(sources.size());
  for (const at::Tensor& source : sources) {
    all.push_back(static_cast<const T*>(source.const_data_ptr()) + begin);
  }
  return all;
}

template <class T>
double sum_on_cpu(const at::Tensor& out, bool accumulate, float scale, at::TensorList sources) {
  return sum_over_parts(out.numel(), [&](int64_t begin, int64_t numel) {
    return kernels::sum_in_rank_order(values_of(out, begin), accumulate, scale,
                                      typed<T>(sources, begin), numel);
  });
}

template <class T>
bool sum_by(const OnDevice& device, const at::Tensor& out, bool accumulate, float scale,
            at::TensorList sources) {
  const std::vector<const T*> all = typed<T>(sources, 0);
  device->sum_in_rank_order(values_of(out, 0), accumulate, scale, std::span<const T* const>(all),
                            out.numel(), device.stream());
  return true;
}

// False if the device has no kernel for these.
bool sum_on_device(const at::Tensor& out, bool accumulate, float scale, at::TensorList sources) {
  const OnDevice device(out);
  if (!device) {
    return false;
  }
  switch (sources.front().scalar_type()) {
    case at::kFloat:
      return sum_by<float>(device, out, accumulate, scale, sources);
    case at::kBFloat16:
      return sum_by<uint16_t>(device, out, accumulate, scale, sources);
    case at::kHalf:
      return sum_by<kernels::Float16>(device, out, accumulate, scale, sources);
    default:
      return false;
  }
}

void sum_with_aten(const at::Tensor& out, bool accumulate, float scale, at::TensorList sources) {
  at::Tensor sum = out.to(at::kFloat);  // `out` itself where it is fp32
  for (const at::Tensor& source : sources) {
    if (accumulate) {
      sum.add_(at::mul(source.to(at::kFloat), scale));
    } else {
      sum.copy_(source);
      sum.mul_(scale);
    }
    accumulate = true;
  }
  if (out.scalar_type() != at::kFloat) {
    out.copy_(sum);
  }
}

}  // namespace

double sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                         at::TensorList sources) {
  const at::Tensor& first = sources.front();
  if (has_own_loops(first)) {
    return first.scalar_type() == at::kFloat
               ? sum_on_cpu<float>(out, accumulate, scale, sources)
               : sum_on_cpu<uint16_t>(out, accumulate, scale, sources);
  }
  if (!is_planned(out) && !sum_on_device(out, accumulate, scale, sources)) {
    sum_with_aten(out, accumulate, scale, sources);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void scale_in_place(const at::Tensor& values, float factor) {
  if (has_own_loops(values)) {
    return for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::scale_in_place(values_of(values, begin), factor, numel);
    });
  }
  if (const OnDevice device(values); device) {
    return device->scale_in_place(values_of(values, 0), factor, values.numel(), device.stream());
  }
  values.mul_(factor);
}

void scale_in_place(const at::Tensor& values, const at::Tensor& factor) {
  if (values.scalar_type() == at::kFloat) {
    values.mul_(factor);
  } else {
    values.copy_(values.to(at::kFloat).mul_(factor));  // else the factor is rounded before
  }
}

double sum_of_squares(const at::Tensor& values) {
  if (has_own_loops(values)) {
    return sum_over_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      return kernels::sum_of_squares(const_values_of(values, begin), numel);
    });
  }
  return sum_of_squares_on_device(values).item<double>();
}

at::Tensor sum_of_squares_on_device(const at::Tensor& values) {
  if (has_own_loops(values)) {
    return at::scalar_tensor(sum_of_squares(values), at::kDouble);
  }
  if (const OnDevice device(values); device) {
    const auto in_double = c10::TensorOptions(at::kDouble).device(values.device());
    const at::Tensor sum = at::empty({}, in_double);
    const at::Tensor parts = at::empty({kernels::Squares::kParts}, in_double);
    device->sum_of_squares(const_values_of(values, 0), values.numel(),
                           {sum.mutable_data_ptr<double>(), parts.mutable_data_ptr<double>()},
                           device.stream());
    return sum;
  }
  const at::Tensor norm = at::linalg_vector_norm(values, 2, std::nullopt, false, at::kDouble);
  return at::mul(norm, norm);
}

at::Tensor clip_factor_on_device(const at::Tensor& squares, double max_norm) {
  at::Tensor factor = at::empty({}, squares.options().dtype(at::kFloat));
  if (const OnDevice device(factor); device) {
    device->clip_factor(squares.const_data_ptr<double>(), max_norm,
                        factor.mutable_data_ptr<float>(), device.stream());
    return factor;
  }
  const at::Tensor wanted = squares.sqrt().add_(1e-6).reciprocal_().mul_(max_norm);
  return at::where(wanted.lt(1.0), wanted, 1.0).to(at::kFloat);
}

at::Tensor sum_of_powers(const at::Tensor& values, double p) {
  if (values.numel() == 0) {
    return at::zeros({}, values.options().dtype(at::kDouble));
  }
  const at::Tensor norm = at::linalg_vector_norm(values, p, std::nullopt, false, at::kDouble);
  return std::isinf(p) ? norm : at::pow(norm, p);
}

namespace {

kernels::SplitMaster halves_of(const at::Tensor& travelling, const at::Tensor& low) {
  return {bits(travelling), low.mutable_data_ptr<int16_t>()};
}

// Moves fp32 values, as their bits, from halfway as kernels::split() does.
void move_from_halfway(at::Tensor values) {
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
    uint16_t* const rounded = bits(out);
    return for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::to_bfloat16(all + begin, rounded + begin, numel);
    });
  }
  if (const OnDevice device(out); device && out.scalar_type() == at::kBFloat16) {
    return device->to_bfloat16(values.const_data_ptr<float>(), bits(out), values.numel(),
                               device.stream());
  }
  out.copy_(values);
}

void split(const at::Tensor& values, const at::Tensor& travelling, const at::Tensor& low) {
  if (has_own_loops(travelling)) {
    const kernels::SplitMaster halves = halves_of(travelling, low);
    const auto* all = values.const_data_ptr<float>();
    return for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::split(all + begin, halves.from(begin), numel);
    });
  }
  if (const OnDevice device(travelling); device) {
    return device->split(values.const_data_ptr<float>(), halves_of(travelling, low), values.numel(),
                         device.stream());
  }
  if (is_planned(values)) {
    return;
  }
  const at::Tensor whole = values.clone();
  move_from_halfway(whole.view(at::kInt));
  travelling.copy_(whole);
  at::Tensor distance = whole.view(at::kInt).sub(in_place_of_high(travelling));
  distance.masked_fill_(whole.ne(whole), 0);  // NaN
  low.copy_(distance);
}

at::Tensor join(const at::Tensor& travelling, const at::Tensor& low) {
  const OnDevice device(travelling);
  if (!device && !has_own_loops(travelling) && !is_planned(travelling)) {
    return in_place_of_high(travelling).add_(low).view(at::kFloat);
  }
  at::Tensor values = at::empty(travelling.sizes(), travelling.options().dtype(at::kFloat));
  if (device) {
    device->join(halves_of(travelling, low), floats(values), values.numel(), device.stream());
  } else if (has_own_loops(travelling)) {
    const kernels::SplitMaster halves = halves_of(travelling, low);
    for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::join(halves.from(begin), floats(values) + begin, numel);
    });
  }
  return values;
}

at::Tensor rounding_noise(int64_t first, int64_t numel, uint32_t number, c10::Device device) {
  constexpr int64_t kAllBits = 0xffffffff;
  const auto mixed = [](const at::Tensor& x, int64_t shift) {
    return at::bitwise_xor(x, at::bitwise_right_shift(x, shift));
  };
  const auto times = [](const at::Tensor& x, int64_t factor) {
    return at::bitwise_and(at::mul(x, factor), kAllBits);
  };
  const at::Tensor element =
      at::arange(first, first + numel, at::TensorOptions().dtype(at::kLong).device(device));
  const at::Tensor high = times(at::bitwise_right_shift(element, 32), 0x9e3779b9);
  const auto step = static_cast<int64_t>(number * 0x85ebca6bU);
  at::Tensor x = at::bitwise_xor(at::bitwise_xor(at::bitwise_and(element, kAllBits), high), step);
  x = times(mixed(x, 16), 0x7feb352d);
  x = times(mixed(x, 15), 0x846ca68b);
  return mixed(x, 16);
}

void round_at_random(const at::Tensor& values, const at::Tensor& out, const at::Tensor& noise) {
  constexpr int64_t kNan = 0x7fc00000;
  at::Tensor moved = at::bitwise_and(noise, 0xffff).to(at::kInt).add_(values.view(at::kInt));
  moved.masked_fill_(values.ne(values), kNan);
  out.copy_(at::bitwise_right_shift(moved, 16).to(at::kShort).view(at::kBFloat16));
}

namespace {

// The order of operations of torch.optim.AdamW, as in kernels::adamw(), of fp32 masters.
void update_with_aten(const AdamWTensors& t, const at::Tensor& masters,
                      const kernels::AdamWStep& s) {
  const at::Tensor gradient = t.gradient.to(at::kFloat);
  const at::Tensor g =
      t.grad_scale.defined() ? at::mul(gradient, t.grad_scale) : at::mul(gradient, s.grad_scale);
  at::Tensor exp_avg = t.exp_avg.to(at::kFloat);
  at::Tensor exp_avg_sq = t.exp_avg_sq.to(at::kFloat);
  exp_avg.lerp_(g, s.one_minus_beta1);
  exp_avg_sq.mul_(s.beta2).addcmul_(g, g, s.one_minus_beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(s.bias_correction2_sqrt).add_(s.eps);
  masters.mul_(s.keep).addcdiv_(exp_avg, denominator, -s.step_size);
  if (t.exp_avg.scalar_type() != at::kFloat) {
    const at::Tensor noise =
        rounding_noise(t.first_element, masters.numel(), s.number, masters.device());
    round_at_random(exp_avg, t.exp_avg, noise);
    round_at_random(exp_avg_sq, t.exp_avg_sq, at::bitwise_right_shift(noise, 16));
  }
}

void adamw_with_aten(const AdamWTensors& t, const kernels::AdamWStep& step) {
  if (t.low.defined()) {
    const at::Tensor masters = join(t.travelling, t.low);
    update_with_aten(t, masters, step);
    return split(masters, t.travelling, t.low);
  }
  if (!t.master.defined()) {
    const at::Tensor masters = t.travelling.to(at::kFloat);
    update_with_aten(t, masters, step);
    return round_at_random(masters, t.travelling,
                           rounding_noise(t.first_element, masters.numel(),
                                          kernels::masters_number(step.number), masters.device()));
  }
  const bool settles = t.travelling.defined() && t.travelling.scalar_type() == at::kBFloat16;
  if (settles) {
    move_from_halfway(t.master.view(at::kInt));
  }
  update_with_aten(t, t.master, step);
  if (settles) {
    move_from_halfway(t.master.view(at::kInt));
  }
}

// Restores what was there if the factor is NaN.
void adamw_unless_nan(const AdamWTensors& t, const kernels::AdamWStep& step) {
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const at::Tensor& out : {t.master, t.exp_avg, t.exp_avg_sq, t.travelling, t.low}) {
    if (out.defined()) {
      before.emplace_back(out, out.clone());
    }
  }
  const at::Tensor leave = at::isnan(t.grad_scale);
  adamw_with_aten(t, step);
  for (auto& [out, old] : before) {
    out.copy_(at::where(leave, old, out));
  }
}

// For own loops and kernels, which write what travels in bf16, too.
kernels::AdamWShards shards_of(const AdamWTensors& t) {
  const bool writes_travelling =
      t.travelling.defined() && t.travelling.scalar_type() == at::kBFloat16;
  return {.master = t.master.defined() ? floats(t.master) : nullptr,
          .travelling = writes_travelling ? bits(t.travelling) : nullptr,
          .low = t.low.defined() ? t.low.mutable_data_ptr<int16_t>() : nullptr,
          .exp_avg = values_of(t.exp_avg, 0),
          .exp_avg_sq = values_of(t.exp_avg_sq, 0),
          .gradient = const_values_of(t.gradient, 0),
          .first_element = static_cast<uint64_t>(t.first_element)};
}

void adamw_on_cpu(const AdamWTensors& t, kernels::AdamWStep step) {
  if (t.grad_scale.defined()) {
    step.grad_scale = t.grad_scale.item<float>();
    if (std::isnan(step.grad_scale)) {
      return;
    }
  }
  const kernels::AdamWShards shards = shards_of(t);
  for_parts(t.gradient.numel(),
            [&](int64_t begin, int64_t numel) { kernels::adamw(shards.from(begin), numel, step); });
}

}  // namespace

void fill_random(const at::Tensor& out, int64_t first, const kernels::RandomWords& words,
                 const kernels::Distribution& distribution) {
  constexpr int64_t kPerBlock = kernels::RandomWords::kPerBlock;
  constexpr int64_t kBlocksPerThread = int64_t{1} << 11;  // about 0.2 ms of work
  const int64_t blocks = out.numel() / kPerBlock;
  if (const OnDevice device(out); device) {
    return device->fill_random(floats(out), static_cast<uint64_t>(first / kPerBlock), blocks, words,
                               distribution, device.stream());
  }
  at::parallel_for(0, blocks, kBlocksPerThread, [&](int64_t begin, int64_t end) {
    kernels::fill_random(floats(out) + begin * kPerBlock,
                         static_cast<uint64_t>(first / kPerBlock + begin), end - begin, words,
                         distribution);
  });
}

void adamw(const AdamWTensors& t, const kernels::AdamWStep& step) {
  bool writes_bf16 = true;
  if (has_own_loops(t.gradient)) {
    adamw_on_cpu(t, step);
  } else if (const OnDevice device(t.gradient); device) {
    const bool has_scale = t.grad_scale.defined();
    device->adamw(shards_of(t), t.gradient.numel(), step,
                  has_scale ? t.grad_scale.const_data_ptr<float>() : nullptr, device.stream());
  } else if (!is_planned(t.gradient)) {
    t.grad_scale.defined() ? adamw_unless_nan(t, step) : adamw_with_aten(t, step);
    writes_bf16 = false;
  }
  const bool is_rounded = t.master.defined() && t.travelling.defined();
  if (is_rounded && !(writes_bf16 && t.travelling.scalar_type() == at::kBFloat16)) {
    round_into(t.master, t.travelling);
  }
}

}  // namespace shard_math

}  // namespace sherd::detail
