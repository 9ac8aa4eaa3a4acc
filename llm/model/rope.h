#pragma once
// Rotary position embedding as model configurations describe it.

#include <cstdint>
#include <string>
#include <utility>
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

/// Each pair's wavelength grows by a factor of its own: by `short_factors` where no text is longer
/// than the original context, else by `long_factors`. cos and sin are multiplied by
/// `attention_factor` with either. `rope_type` "longrope".  Paper: arXiv:2402.13753.
struct LongRopeScaling {
  std::vector<double> short_factors;    ///< one per pair, > 0
  std::vector<double> long_factors;     ///< as `short_factors`
  double attention_factor = 1;          ///< on cos and sin
  int64_t original_context_tokens = 0;  ///< the context the model was trained on first
};

/// How wavelengths differ from those of theta alone.
using RopeScaling =
    std::variant<std::monostate, LinearScaling, Llama3Scaling, YarnScaling, LongRopeScaling>;

/// Hugging Face: `rope_theta` and `rope_scaling`, or `rope_parameters`.
struct RopeConfig {
  double theta = 10'000;  ///< base of the wavelengths, > 0
  RopeScaling scaling = {};
  double rotated_share = 1;  ///< of a head's dimensions: the first ones rotate, the others pass

  /// Dimensions of a head of `head_size` that rotate.
  [[nodiscard]] int64_t rotated_size(int64_t head_size) const;
  /// What cos and sin are multiplied by.
  [[nodiscard]] double attention_factor() const;
};

/// Angle per position of each pair of a head. Shapes: fp32 [rotated_size / 2]. Rounded where
/// Hugging Face rounds, so that long contexts agree with it. `longest_text`, in tokens, decides
/// which factors of longrope count; other kinds do not read it.
[[nodiscard]] at::Tensor rope_frequencies(const RopeConfig& config, int64_t head_size,
                                          int64_t longest_text = 0);

/// For people, of longrope: which factors texts of up to `longest_text` tokens take, and why. Empty
/// for other kinds.
[[nodiscard]] std::string longrope_remark(const RopeConfig& config, int64_t longest_text);

/// Rotary tables, made when they are first needed: a model built on the meta device has no data.
class RopeCache {
 public:
  RopeCache(RopeConfig config, int64_t head_size, int64_t longest_text = 0)
      : config_(std::move(config)), head_size_(head_size), longest_text_(longest_text) {}
  /// See rope_frequencies(). Before the first tables.
  void set_longest_text(int64_t tokens);
  /// Tables for positions 0 … `positions` − 1 on `device`. On GPUs they stay where they are: graphs
  /// read them (sherd::MicroBatchGraphs).
  [[nodiscard]] sherd::ops::RotaryTables tables(int64_t positions, at::Device device);

 private:
  RopeConfig config_;
  int64_t head_size_;
  int64_t longest_text_;
  sherd::ops::RotaryTables tables_;
  std::vector<sherd::ops::RotaryTables> smaller_;  ///< made before
};

}  // namespace llm::model
