#pragma once
// What families have in common whose models are Llama's but for a part or two.

#include <optional>
#include <string>
#include <vector>

#include "llm/families/json_fields.h"
#include "llm/families/rope_fields.h"
#include "llm/model/causal_lm.h"
#include "llm/model/decoder_config.h"

namespace llm::families {

/// What a family says where a field of config.json is missing.
struct ShapeDefaults {
  int64_t head_size = 0;  ///< 0: the width divided by the heads
  int64_t context_length = 2'048;
  double norm_epsilon = 1e-6;
  double rope_theta = 10'000;
  bool tied_embedding = false;
  bool has_partial_rotary = false;                       ///< see RopeSetting
  double rotated_share = 1;                              ///< as `has_partial_rotary`
  int64_t original_context_length = 0;                   ///< as `has_partial_rotary`
  bool yarn_is_longrope = false;                         ///< as `has_partial_rotary`
  std::optional<WindowRope> window_rope = std::nullopt;  ///< where layers with a window have one
};

/// Reads sizes, norms and rotary positions. Throws Error(BadData), with file and field.
[[nodiscard]] model::DecoderConfig read_shape(const JsonFields& fields,
                                              const ShapeDefaults& defaults);

/// Refuses fields with which none of these families computes as here, and other architectures.
void refuse_other_layers(const JsonFields& fields, const std::vector<const char*>& architectures);

/// The same but for fields that Gemma reads: which activation its gate has, and soft caps.
void refuse_other_attention(const JsonFields& fields,
                            const std::vector<const char*>& architectures);

/// The layers `self_attn` and `mlp`, with norms before or after each, of a model of that shape with
/// random weights.
[[nodiscard]] model::CausalLm build_llama_like(const std::string& model_type,
                                               const model::DecoderConfig& config);

}  // namespace llm::families
