#pragma once
// Keys that several of llama.cpp's architectures share.

#include <string>
#include <vector>

#include "llm/gguf/architecture.h"

namespace llm::gguf {

/// The keys that write_shape() and write_rope() write, and some that mean the same.
[[nodiscard]] std::vector<const char*> shape_keys(std::initializer_list<const char*> more = {});

/// Sizes, heads and the norm's epsilon, whose key says whether it is RMSNorm or LayerNorm.
void write_shape(const SourceModel& model, KeyWriter& keys,
                 const char* epsilon = "attention.layer_norm_rms_epsilon");
/// Base and kind of rotary positions, but for llama3's, which are a tensor: where `has_factors`
/// they are allowed.
void write_rope(const SourceModel& model, bool has_factors, KeyWriter& keys);
/// The sizes of heads, after the norm's epsilon as llama.cpp's converter has them.
void write_head_sizes(const SourceModel& model, KeyWriter& keys);

/// The fields of a config.json that these keys mean.
void read_shape(const KeyReader& keys, nlohmann::ordered_json& config);
void read_rope(const KeyReader& keys, nlohmann::ordered_json& config);

/// Refuses rotary positions of their kind.
[[noreturn]] void refuse_rope(const SourceModel& model, const model::RopeConfig& rope);
/// Refuses models of which some layers have no rotary positions.
void refuse_layers_without_rope(const SourceModel& model);
/// Refuses models of which some layers see a window, where texts may be longer than it.
void refuse_windows(const SourceModel& model);

}  // namespace llm::gguf
