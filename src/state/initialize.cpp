#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "kernels/shard_math.h"
#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

// Elements that are drawn at a time: 4 MiB of fp32 stay in a CPU's cache; a GPU takes 64 MiB.
constexpr int64_t kChunkOnCpu = int64_t{1} << 20;
constexpr int64_t kChunkOnDevice = int64_t{1} << 24;

// Where elements are drawn: on the device of the model, also where they rest on its host.
c10::Device drawing_device(c10::Device device) {
  return detail::has_device_kernels(device.type()) ? device : c10::Device(c10::kCPU);
}

// Throws Error(Usage) for what was built on meta and no function filled.
void fill_entries(std::vector<detail::StateEntry>& entries, uint64_t seed, c10::Device device,
                  const ParamInitFn& param_init_fn, const ParamInitFn& buffer_init_fn) {
  std::string left_out;
  for (detail::StateEntry& entry : entries) {
    ParameterInit init(entry, seed, device);
    if (const ParamInitFn& fill = entry.is_buffer() ? buffer_init_fn : param_init_fn) {
      fill(init);
    }
    if (init.is_filled()) {
      entry.finish_writing();
    } else if (!entry.is_written) {
      left_out += "\n  " + entry.described();
    }
  }
  if (!left_out.empty()) {
    throw Error(ExitCode::Usage,
                "[initialize] these have no values (they were built on the meta device, or an "
                "operation has left them torn), and no function filled them:" +
                    left_out +
                    "\nCall one of the fill functions for each; buffers have a function of their "
                    "own, buffer_init_fn.");
  }
}

}  // namespace

void ParameterInit::refuse(const std::string& what) const {
  throw Error(ExitCode::Usage, "[initialize] " + entry_.described() + " " + what);
}

const std::string& ParameterInit::name() const {
  return entry_.name;
}

const std::vector<int64_t>& ParameterInit::shape() const {
  return entry_.shape;
}

int64_t ParameterInit::fan_in() const {
  if (shape().size() < 2) {
    refuse("has " + std::to_string(shape().size()) +
           " dimensions and so no fan-in: give its range itself.");
  }
  return std::accumulate(shape().begin() + 1, shape().end(), int64_t{1}, std::multiplies<>());
}

void ParameterInit::fill_constant(double value) {
  entry_.mine.fill(value);
  filled_ = true;
}

template <class Distribution>
void ParameterInit::draw(const Distribution& distribution) {
  if (!entry_.mine.is_floating_point()) {
    refuse(std::string("is ") + c10::toString(entry_.mine.dtype()) +
           ", and random numbers are floating-point: use fill_constant or fill_from.");
  }
  constexpr int64_t kPerBlock = kernels::RandomWords::kPerBlock;
  const c10::Device device = drawing_device(device_);
  const int64_t most = device.is_cpu() ? kChunkOnCpu : kChunkOnDevice;
  const kernels::RandomWords words{seed_, kernels::stable_hash(entry_.name)};
  const int64_t numel = entry_.mine.numel();
  const int64_t skipped = entry_.begin % kPerBlock;  // of the first block
  const auto drawn = [&](int64_t count) {
    return (skipped + count + kPerBlock - 1) / kPerBlock * kPerBlock;
  };
  detail::own_work([&] {
    const at::Tensor chunk =
        at::empty({drawn(std::min(most, numel))}, c10::TensorOptions(at::kFloat).device(device));
    for (int64_t done = 0; done < numel; done += most) {
      const int64_t count = std::min(most, numel - done);
      const int64_t first = entry_.begin + done;
      detail::shard_math::fill_random(chunk.narrow(0, 0, drawn(count)), first - skipped, words,
                                      distribution);
      entry_.write(first, chunk.narrow(0, skipped, count));
    }
  });
  filled_ = true;
}

void ParameterInit::fill_uniform(double low, double high) {
  if (!(low <= high)) {
    refuse("cannot be uniform over [" + std::to_string(low) + ", " + std::to_string(high) +
           "): the first number is the lower one.");
  }
  draw(kernels::Uniform{low, high});
}

void ParameterInit::fill_normal(double mean, double std) {
  if (!(std >= 0)) {
    refuse("cannot have the standard deviation " + std::to_string(std) + ": it is 0 or more.");
  }
  draw(kernels::Normal{mean, std});
}

void ParameterInit::fill_kaiming_uniform(double a) {
  const double bound = std::sqrt(6.0 / ((1.0 + a * a) * static_cast<double>(fan_in())));
  fill_uniform(-bound, bound);
}

void ParameterInit::fill_from(const at::Tensor& whole) {
  if (!whole.defined() || whole.sizes() != at::IntArrayRef(entry_.shape)) {
    refuse("has shape " + c10::str(at::IntArrayRef(entry_.shape)) +
           ", and what it is to be filled from " +
           (whole.defined() ? c10::str(whole.sizes()) : std::string("is undefined")) + ".");
  }
  entry_.write(0, whole.detach().reshape({-1}));
  filled_ = true;
}

void initialize(ShardedModule& model, uint64_t seed, const ParamInitFn& param_init_fn,
                const ParamInitFn& buffer_init_fn) {
  detail::ShardWriter writer(detail::engine_of(model).step, "initialize");
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  static_cast<void>(detail::agree(model.world(), "initialization failed", [&]() -> std::string {
    fill_entries(entries, seed, model.world().device(), param_init_fn, buffer_init_fn);
    return "";
  }));
  writer.publish();
}

}  // namespace sherd
