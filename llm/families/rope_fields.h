#pragma once
// Rotary positions in a config.json, in the spellings of transformers 4 and 5.

#include "llm/families/json_fields.h"
#include "llm/model/rope.h"

namespace llm::families {

/// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`; both, where they agree.
/// `context_length`: the model's, for kinds that name no original one. Throws Error(BadData) for
/// what is contradictory or not implemented.
[[nodiscard]] model::RopeConfig read_rope(const JsonFields& fields, int64_t context_length,
                                          double default_theta = model::RopeConfig{}.theta);

}  // namespace llm::families
