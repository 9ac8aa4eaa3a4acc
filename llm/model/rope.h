#pragma once
// Rotary position embedding as model configurations describe it.

#include <cstdint>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/rotary.h"

namespace llm::model {

/// Llama 3.1's stretching of low frequencies, so that a model trained on short texts reads long
/// ones. Hugging Face: `rope_type` "llama3".
struct Llama3Scaling {
  double factor = 8;            ///< by how much wavelengths that are stretched grow, ≥ 1
  double low_freq_factor = 1;   ///< wavelengths above original ÷ this are stretched in full
  double high_freq_factor = 4;  ///< wavelengths below original ÷ this stay
  int64_t original_context_tokens = 8'192;  ///< the context the model was trained on first
};

/// All wavelengths grow by a factor: positions are as if they lay closer. `rope_type` "linear".
/// Paper: arXiv:2306.15595.
struct LinearScaling {
  double factor = 1;  ///< ≥ 1
};

/// Long wavelengths grow by a factor, short ones stay, and between two numbers of turns in the
/// original context the share changes evenly. cos and sin are multiplied by `attention_factor`.
/// `rope_type` "yarn".  Paper: arXiv:2309.00071.
struct YarnScaling {
  double factor = 1;                    ///< ≥ 1
  double beta_fast = 32;                ///< pairs with more turns stay
  double beta_slow = 1;                 ///< pairs with fewer grow by the whole factor
  bool truncate = true;                 ///< the two pairs between which the share changes are whole
  double attention_factor = 1;          ///< on cos and sin
  int64_t original_context_tokens = 0;  ///< the context the model was trained on first
};

/// How wavelengths differ from those of theta alone.
using RopeScaling = std::variant<std::monostate, LinearScaling, Llama3Scaling, YarnScaling>;

/// Hugging Face: `rope_theta` and `rope_scaling`, or `rope_parameters`.
struct RopeConfig {
  double theta = 10'000;  ///< base of the wavelengths, > 0
  RopeScaling scaling = {};

  /// What cos and sin are multiplied by.
  [[nodiscard]] double attention_factor() const;
};

/// Angle per position of each pair of a head. Shapes: fp32 [head_size / 2]. Rounded where Hugging
/// Face rounds, so that long contexts agree with it.
[[nodiscard]] at::Tensor rope_frequencies(const RopeConfig& config, int64_t head_size);

/// Rotary tables, made when they are first needed: a model built on the meta device has no data.
class RopeCache {
 public:
  RopeCache(const RopeConfig& config, int64_t head_size) : config_(config), head_size_(head_size) {}
  /// Tables for positions 0 … `positions` − 1 on `device`. On GPUs they stay where they are: graphs
  /// read them (sherd::MicroBatchGraphs).
  [[nodiscard]] sherd::ops::RotaryTables tables(int64_t positions, at::Device device);

 private:
  RopeConfig config_;
  int64_t head_size_;
  sherd::ops::RotaryTables tables_;
  std::vector<sherd::ops::RotaryTables> smaller_;  ///< made before
};

}  // namespace llm::model
