#include "llm/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include "sherd/memory.h"

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

// Frequencies become others, in place. Shapes: fp32 [head_size / 2].
void scale_frequencies(at::Tensor& frequencies, const Llama3Scaling& scaling) {
  auto values = frequencies.accessor<float, 1>();
  for (int64_t i = 0; i < values.size(0); ++i) {
    values[i] = stretched(values[i], scaling);
  }
}

// The pair, a fraction too, that makes so many turns in the original context.
double pair_of(double turns, const YarnScaling& scaling, double theta, int64_t head_size) {
  const double original = static_cast<double>(scaling.original_context_tokens);
  return static_cast<double>(head_size) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

void scale_frequencies(at::Tensor& frequencies, const YarnScaling& scaling, double theta,
                       int64_t head_size) {
  double low = pair_of(scaling.beta_fast, scaling, theta, head_size);
  double high = pair_of(scaling.beta_slow, scaling, theta, head_size);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_size - 1));
  high += low == high ? 0.001 : 0;
  auto values = frequencies.accessor<float, 1>();
  for (int64_t i = 0; i < values.size(0); ++i) {
    const double share = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double frequency = values[i];
    values[i] = static_cast<float>((1 - share) * frequency + share * frequency / scaling.factor);
  }
}

bool takes_long_factors(const LongRopeScaling& scaling, int64_t longest_text) {
  return longest_text > scaling.original_context_tokens;
}

void scale_frequencies(at::Tensor& frequencies, const LongRopeScaling& scaling,
                       int64_t longest_text) {
  const auto& factors =
      takes_long_factors(scaling, longest_text) ? scaling.long_factors : scaling.short_factors;
  auto values = frequencies.accessor<float, 1>();
  TORCH_CHECK(static_cast<size_t>(values.size(0)) == factors.size(), "[rope_frequencies] got ",
              factors.size(), " factors for ", values.size(0), " pairs");
  for (int64_t i = 0; i < values.size(0); ++i) {
    values[i] /= static_cast<float>(factors[static_cast<size_t>(i)]);
  }
}

}  // namespace

double RopeConfig::attention_factor() const {
  if (const auto* yarn = std::get_if<YarnScaling>(&scaling)) {
    return yarn->attention_factor;
  }
  const auto* longrope = std::get_if<LongRopeScaling>(&scaling);
  return longrope != nullptr ? longrope->attention_factor : 1;
}

int64_t RopeConfig::rotated_size(int64_t head_size) const {
  return static_cast<int64_t>(static_cast<double>(head_size) * rotated_share);
}

std::string longrope_remark(const RopeConfig& config, int64_t longest_text) {
  const auto* longrope = std::get_if<LongRopeScaling>(&config.scaling);
  if (longrope == nullptr) {
    return "";
  }
  const bool is_long = takes_long_factors(*longrope, longest_text);
  return fmt::format(
      "rotary positions take longrope's {} factors: texts of up to {} tokens are {} "
      "than the {} of the original context",
      is_long ? "long" : "short", longest_text, is_long ? "longer" : "not longer",
      longrope->original_context_tokens);
}

at::Tensor rope_frequencies(const RopeConfig& config, int64_t head_size, int64_t longest_text) {
  const int64_t rotated = config.rotated_size(head_size);
  const at::Tensor exponents =
      at::arange(0, rotated, 2, at::kFloat).div_(static_cast<double>(rotated));
  at::Tensor frequencies = at::pow(config.theta, exponents).reciprocal_();
  if (const auto* linear = std::get_if<LinearScaling>(&config.scaling)) {
    frequencies.div_(linear->factor);
  } else if (const auto* llama3 = std::get_if<Llama3Scaling>(&config.scaling)) {
    scale_frequencies(frequencies, *llama3);
  } else if (const auto* yarn = std::get_if<YarnScaling>(&config.scaling)) {
    scale_frequencies(frequencies, *yarn, config.theta, rotated);
  } else if (const auto* longrope = std::get_if<LongRopeScaling>(&config.scaling)) {
    scale_frequencies(frequencies, *longrope, longest_text);
  }
  return frequencies;
}

void RopeCache::set_longest_text(int64_t tokens) {
  longest_text_ = tokens;
  tables_ = {};
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
        sherd::to_device(rope_frequencies(config_, head_size_, longest_text_), device), made);
    if (const double factor = config_.attention_factor(); factor != 1) {
      tables_.cosine.mul_(factor);
      tables_.sine.mul_(factor);
    }
  }
  return {tables_.cosine.narrow(0, 0, positions), tables_.sine.narrow(0, 0, positions)};
}

}  // namespace llm::model
