#include "llm/families/window_fields.h"

#include <algorithm>

#include <fmt/core.h>

#include "llm/families/fixed_fields.h"

namespace llm::families {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

std::set<int64_t> layers_with_windows(const JsonFields& fields, const Json& types, int64_t layers) {
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    fields.fail("layer_types", fmt::format("must be a list of {} names, one per layer, found {}",
                                           layers, types.dump()));
  }
  std::set<int64_t> windowed;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const Json& type = types[static_cast<size_t>(layer)];
    if (type != kFull && type != kSliding) {
      fields.fail("layer_types",
                  fmt::format("{} is not implemented: layer {} is {}, and layers are "
                              "\"{}\" or \"{}\"",
                              types.dump(), layer, type.dump(), kFull, kSliding));
    }
    if (type == kSliding) {
      windowed.insert(layer);
    }
  }
  return windowed;
}

// 0: none
int64_t window_of(const JsonFields& fields, int64_t missing) {
  const bool is_null =
      fields.object().contains("sliding_window") && fields.find("sliding_window") == nullptr;
  return is_null ? 0
         : fields.find("sliding_window") == nullptr
             ? missing
             : fields.count("sliding_window", JsonFields::kMostUnits);
}

}  // namespace

void read_windows(const JsonFields& fields, const WindowRule& rule, model::DecoderConfig& config) {
  const int64_t window = window_of(fields, rule.missing);
  if (const Json* types = fields.find("layer_types"); types != nullptr) {
    config.layers_with_window = layers_with_windows(fields, *types, config.layers);
    if (!config.layers_with_window.empty() && window == 0) {
      fields.fail("layer_types", types->dump() +
                                     " has layers with a window, but \"sliding_window\" does not "
                                     "say how many tokens it holds. Set it, or make all layers \"" +
                                     kFull + "\"");
    }
  } else if (window != 0) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      if (rule.has_window(layer)) {
        config.layers_with_window.insert(layer);
      }
    }
  }
  config.window = config.layers_with_window.empty() ? 0 : window;
}

void refuse_windows(const JsonFields& fields) {
  const auto is_full = [](const Json& type) { return type == kFull; };
  if (const Json* layers = fields.find("layer_types");
      layers != nullptr && !std::all_of(layers->begin(), layers->end(), is_full)) {
    fields.fail("layer_types", layers->dump() + " is not implemented, only \"" + kFull + "\"");
  }
}

}  // namespace llm::families
