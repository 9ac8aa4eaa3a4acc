#pragma once
// Windows of attention, as config.json says them: `sliding_window`, and which layers have it.

#include <cstdint>
#include <functional>

#include "llm/families/json_fields.h"
#include "llm/model/decoder_config.h"

namespace llm::families {

/// What a family computes where config.json does not list `layer_types`.
struct WindowRule {
  int64_t missing =
      0;  ///< tokens of a window whose field `sliding_window` is missing; 0: no window
  std::function<bool(int64_t layer)> has_window;  ///< of a layer where there is a window
};

/// Reads the window and its layers into `config`, whose number of layers is known. `layer_types`
/// decides where it is there, `rule` elsewhere. `sliding_window` null is no window. Throws
/// Error(BadData) for other types of layers, and where a layer has a window whose size is not said.
void read_windows(const JsonFields& fields, const WindowRule& rule, model::DecoderConfig& config);

/// Refuses windows, for families that have none.
void refuse_windows(const JsonFields& fields);

}  // namespace llm::families
