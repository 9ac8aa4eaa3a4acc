#pragma once
// Rotary positions in a config.json, in the spellings of transformers 4 and 5.

#include "llm/families/json_fields.h"
#include "llm/model/rope.h"

namespace llm::families {

/// What the rest of a configuration, and its family, say about rotary positions.
struct RopeSetting {
  int64_t context_length = 0;  ///< the model's, for kinds that name no original one
  int64_t head_size = 0;
  double theta = model::RopeConfig{}.theta;  ///< where the file gives none
  bool is_partial = false;                   ///< whether the family reads `partial_rotary_factor`
  double rotated_share = 1;                  ///< where it does, and the file gives none
  /// Phi-3's original context, which longrope reads; 0: the field inside the object counts.
  int64_t original_context = 0;
  bool yarn_is_longrope = false;  ///< "yarn" and "su" are names of longrope, as in Phi-3's files
};

/// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`; both, where they agree. Throws
/// Error(BadData) for what is contradictory or not implemented.
[[nodiscard]] model::RopeConfig read_rope(const JsonFields& fields, const RopeSetting& setting);

/// Rotary positions that layers with a window have of their own.
struct WindowRope {
  double theta = 10'000;              ///< where the file gives none
  const char* theta_field = nullptr;  ///< in files of transformers 4; null: `rope_theta` is read
};
struct LayerRopes {
  model::RopeConfig full;    ///< of layers without a window
  model::RopeConfig window;  ///< of the others
};

/// Reads `rope_parameters` by type of layer, or what transformers 4 wrote: `rope_theta` and
/// `rope_scaling` of the layers without a window, and a theta of the others, which never scale;
/// both, where they agree. Throws as read_rope().
[[nodiscard]] LayerRopes read_layer_ropes(const JsonFields& fields, const RopeSetting& setting,
                                          const WindowRope& window);

}  // namespace llm::families
