#include "llm/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

#include "sherd/to_device.h"

namespace llm::model {
namespace {

float stretched(float frequency, const Llama3Scaling& scaling) {
  const double original = static_cast<double>(scaling.original_context_tokens);
  const double turns = original * frequency / (2 * std::numbers::pi);  // in the original context
  const double slow = frequency / scaling.factor;
  if (turns < scaling.low_freq_factor) {
    return static_cast<float>(slow);
  }
  if (turns > scaling.high_freq_factor) {
    return frequency;
  }
  const double share =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - share) * slow + share * frequency);
}

}  // namespace

at::Tensor rope_frequencies(const RopeConfig& config, int64_t head_size) {
  const at::Tensor exponents =
      at::arange(0, head_size, 2, at::kFloat).div_(static_cast<double>(head_size));
  at::Tensor frequencies = at::pow(config.theta, exponents).reciprocal_();
  if (config.scaling) {
    auto values = frequencies.accessor<float, 1>();
    for (int64_t i = 0; i < values.size(0); ++i) {
      values[i] = stretched(values[i], *config.scaling);
    }
  }
  return frequencies;
}

sherd::ops::RotaryTables RopeCache::tables(int64_t positions, at::Device device) {
  if (!tables_.cosine.defined() || tables_.cosine.size(0) < positions ||
      tables_.cosine.device() != device) {
    const bool may_be_in_graphs = !device.is_cpu() && !device.is_meta();
    int64_t made = positions;
    if (may_be_in_graphs && tables_.cosine.defined()) {
      smaller_.push_back(tables_);
      made = std::max(positions, 2 * tables_.cosine.size(0));  // all before take no more than it
    }
    tables_ = sherd::ops::rotary_tables(
        sherd::to_device(rope_frequencies(config_, head_size_), device), made);
  }
  return {tables_.cosine.narrow(0, 0, positions), tables_.sine.narrow(0, 0, positions)};
}

}  // namespace llm::model
