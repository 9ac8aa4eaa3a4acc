#include "kernels/shard_math.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sherd/error.h"

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

namespace shard_math {

namespace {

// The kernels for a tensor's device, and their stream. Makes the device the thread's current one.
// There are none on the meta device: a plan's tensors have no values.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& tensor) {
    if (tensor.is_meta()) {
      return;
    }
    kernels_ = kernels_for(tensor.device().type()).load();
    if (kernels_ == nullptr) {
      throw Error(ExitCode::Unavailable, "shards cannot be computed with on " +
                                             tensor.device().str() +
                                             ": Sherd has kernels for GPUs and loops for CPUs.");
    }
    guard_.reset_device(tensor.device());
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    stream_ = device.getStream(tensor.device()).native_handle();
  }
  [[nodiscard]] explicit operator bool() const { return kernels_ != nullptr; }
  [[nodiscard]] const kernels::DeviceKernels* operator->() const { return kernels_; }
  [[nodiscard]] kernels::Stream stream() const { return stream_; }

 private:
  const kernels::DeviceKernels* kernels_ = nullptr;
  c10::OptionalDeviceGuard guard_;
  kernels::Stream stream_ = nullptr;
};

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

kernels::Sources sources_of(at::TensorList sources, int64_t begin) {
  switch (sources.front().scalar_type()) {
    case at::kFloat:
      return typed<float>(sources, begin);
    case at::kBFloat16:
      return typed<uint16_t>(sources, begin);
    default:  // fp16, the only other dtype of gradients
      return typed<kernels::Float16>(sources, begin);
  }
}

}  // namespace

double sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                         at::TensorList sources) {
  if (out.is_cpu()) {
    return sum_over_parts(out.numel(), [&](int64_t begin, int64_t numel) {
      return kernels::sum_in_rank_order(values_of(out, begin), accumulate, scale,
                                        sources_of(sources, begin), numel);
    });
  }
  if (const OnDevice device(out); device) {
    device->sum_in_rank_order(values_of(out, 0), accumulate, scale, sources_of(sources, 0),
                              out.numel(), device.stream());
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void scale_in_place(const at::Tensor& values, float factor) {
  if (values.is_cpu()) {
    for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::scale_in_place(values_of(values, begin), factor, numel);
    });
  } else if (const OnDevice device(values); device) {
    device->scale_in_place(values_of(values, 0), factor, values.numel(), device.stream());
  }
}

void scale_in_place(const at::Tensor& values, const at::Tensor& factor) {
  if (values.scalar_type() == at::kFloat) {
    values.mul_(factor);
  } else {
    values.copy_(values.to(at::kFloat).mul_(factor));  // else the factor is rounded before
  }
}

at::Tensor sum_of_squares_on_device(const at::Tensor& values) {
  if (values.is_cpu()) {
    const double sum = sum_over_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      return kernels::sum_of_squares(const_values_of(values, begin), numel);
    });
    return at::scalar_tensor(sum, at::kDouble);
  }
  const auto in_double = c10::TensorOptions(at::kDouble).device(values.device());
  at::Tensor sum = at::empty({}, in_double);
  if (const OnDevice device(values); device) {
    const at::Tensor parts = at::empty({kernels::Squares::kParts}, in_double);
    device->sum_of_squares(const_values_of(values, 0), values.numel(),
                           {sum.mutable_data_ptr<double>(), parts.mutable_data_ptr<double>()},
                           device.stream());
  }
  return sum;
}

at::Tensor clip_factor_on_device(const at::Tensor& squares, double max_norm) {
  at::Tensor factor = at::empty({}, squares.options().dtype(at::kFloat));
  if (const OnDevice device(factor); device) {
    device->clip_factor(squares.const_data_ptr<double>(), max_norm,
                        factor.mutable_data_ptr<float>(), device.stream());
  }
  return factor;
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

}  // namespace

void round_into(const at::Tensor& values, const at::Tensor& out) {
  if (out.scalar_type() != at::kBFloat16) {
    out.copy_(values);
  } else if (out.is_cpu()) {
    const auto* all = values.const_data_ptr<float>();
    uint16_t* const rounded = bits(out);
    for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::to_bfloat16(all + begin, rounded + begin, numel);
    });
  } else if (const OnDevice device(out); device) {
    device->to_bfloat16(values.const_data_ptr<float>(), bits(out), values.numel(), device.stream());
  }
}

void split(const at::Tensor& values, const at::Tensor& travelling, const at::Tensor& low) {
  if (travelling.is_cpu()) {
    const kernels::SplitMaster halves = halves_of(travelling, low);
    const auto* all = values.const_data_ptr<float>();
    for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::split(all + begin, halves.from(begin), numel);
    });
  } else if (const OnDevice device(travelling); device) {
    device->split(values.const_data_ptr<float>(), halves_of(travelling, low), values.numel(),
                  device.stream());
  }
}

at::Tensor join(const at::Tensor& travelling, const at::Tensor& low) {
  at::Tensor values = at::empty(travelling.sizes(), travelling.options().dtype(at::kFloat));
  if (travelling.is_cpu()) {
    const kernels::SplitMaster halves = halves_of(travelling, low);
    for_parts(values.numel(), [&](int64_t begin, int64_t numel) {
      kernels::join(halves.from(begin), floats(values) + begin, numel);
    });
  } else if (const OnDevice device(travelling); device) {
    device->join(halves_of(travelling, low), floats(values), values.numel(), device.stream());
  }
  return values;
}

namespace {

// Loops and kernels write what travels in bf16, too.
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
  const auto first_block = static_cast<uint64_t>(first / kPerBlock);
  if (out.is_cpu()) {
    at::parallel_for(0, blocks, kBlocksPerThread, [&](int64_t begin, int64_t end) {
      kernels::fill_random(floats(out) + begin * kPerBlock,
                           first_block + static_cast<uint64_t>(begin), end - begin, words,
                           distribution);
    });
  } else if (const OnDevice device(out); device) {
    device->fill_random(floats(out), first_block, blocks, words, distribution, device.stream());
  }
}

void adamw(const AdamWTensors& t, const kernels::AdamWStep& step) {
  if (t.gradient.is_cpu()) {
    adamw_on_cpu(t, step);
  } else if (const OnDevice device(t.gradient); device) {
    const bool has_scale = t.grad_scale.defined();
    device->adamw(shards_of(t), t.gradient.numel(), step,
                  has_scale ? t.grad_scale.const_data_ptr<float>() : nullptr, device.stream());
  }
  const bool is_rounded = t.master.defined() && t.travelling.defined();
  if (is_rounded && t.travelling.scalar_type() != at::kBFloat16) {
    round_into(t.master, t.travelling);
  }
}

}  // namespace shard_math

}  // namespace sherd::detail
