#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/own_work.h"
#include "init/philox.h"
#include "sherd/init.h"
#include "state/entries.h"
#include "step/engine.h"
#include "step/shard_writer.h"
#include "world/agree.h"

namespace sherd {

namespace {

constexpr int64_t kStretch = int64_t{1} << 14;  // elements drawn at a time: 64 KiB of fp32

// Throws Error(Usage) for what was built on meta and no function filled.
void fill_entries(std::vector<detail::StateEntry>& entries, uint64_t seed,
                  const ParamInitFn& param_init_fn, const ParamInitFn& buffer_init_fn) {
  std::string left_out;
  for (detail::StateEntry& entry : entries) {
    ParameterInit init(entry, seed);
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
                "[initialize] these were built on the meta device, and no function filled them:" +
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

template <class Draw>
void ParameterInit::draw(const Draw& elements) {
  if (!entry_.mine.is_floating_point()) {
    refuse(std::string("is ") + c10::toString(entry_.mine.dtype()) +
           ", and random numbers are floating-point: use fill_constant or fill_from.");
  }
  const detail::RandomElements random(seed_, entry_.name);
  const int64_t numel = entry_.mine.numel();
  const at::Tensor stretch =
      detail::own_work([&] { return at::empty({std::min(kStretch, numel)}, at::kFloat); });
  for (int64_t done = 0; done < numel; done += kStretch) {
    const int64_t count = std::min(kStretch, numel - done);
    const int64_t first = entry_.begin + done;
    elements(random, stretch.mutable_data_ptr<float>(), first, count);
    entry_.write(first, stretch.narrow(0, 0, count));
  }
  filled_ = true;
}

void ParameterInit::fill_uniform(double low, double high) {
  if (!(low <= high)) {
    refuse("cannot be uniform over [" + std::to_string(low) + ", " + std::to_string(high) +
           "): the first number is the lower one.");
  }
  draw([&](const detail::RandomElements& random, float* out, int64_t first, int64_t numel) {
    random.uniform(out, first, numel, low, high);
  });
}

void ParameterInit::fill_normal(double mean, double std) {
  if (!(std >= 0)) {
    refuse("cannot have the standard deviation " + std::to_string(std) + ": it is 0 or more.");
  }
  draw([&](const detail::RandomElements& random, float* out, int64_t first, int64_t numel) {
    random.normal(out, first, numel, mean, std);
  });
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
    fill_entries(entries, seed, param_init_fn, buffer_init_fn);
    return "";
  }));
  writer.publish();
}

}  // namespace sherd
