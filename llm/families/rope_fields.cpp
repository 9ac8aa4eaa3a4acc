#include "llm/families/rope_fields.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "llm/families/fixed_fields.h"

namespace llm::families {
namespace {

using Json = nlohmann::ordered_json;

// A kind of rope, and the fields that it has beside those of all.
struct RopeKind {
  const char* type;
  std::vector<const char*> fields;
  model::RopeScaling (*read)(const JsonFields& rope, int64_t context_length);
};

model::RopeScaling read_default(const JsonFields& /*rope*/, int64_t /*context_length*/) {
  return {};
}

model::RopeScaling read_linear(const JsonFields& rope, int64_t /*context_length*/) {
  return model::LinearScaling{rope.number("factor", 0)};
}

model::RopeScaling read_llama3(const JsonFields& rope, int64_t /*context_length*/) {
  const model::Llama3Scaling scaling = {
      .factor = rope.number("factor", 0),
      .low_freq_factor = rope.number("low_freq_factor", 0),
      .high_freq_factor = rope.number("high_freq_factor", 0),
      .original_context_tokens =
          rope.count("original_max_position_embeddings", JsonFields::kMostUnits)};
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail("high_freq_factor", "must be above \"low_freq_factor\"");
  }
  return scaling;
}

// What yarn multiplies cos and sin by, where the file does not say.
double yarn_magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

model::RopeScaling read_yarn(const JsonFields& rope, int64_t context_length) {
  model::YarnScaling scaling = {
      .factor = rope.number("factor", 0),
      .beta_fast = rope.number("beta_fast", 0, 32),
      .beta_slow = rope.number("beta_slow", 0, 1),
      .truncate = rope.flag("truncate", true),
      .original_context_tokens =
          rope.count("original_max_position_embeddings", JsonFields::kMostUnits, context_length)};
  if (scaling.beta_fast < scaling.beta_slow) {
    rope.fail("beta_fast", "must not be below \"beta_slow\"");
  }
  const bool has_both = rope.find("mscale") != nullptr && rope.find("mscale_all_dim") != nullptr;
  const double magnitude =
      has_both ? yarn_magnitude(scaling.factor, rope.number("mscale", 0)) /
                     yarn_magnitude(scaling.factor, rope.number("mscale_all_dim", 0))
               : yarn_magnitude(scaling.factor, 1);
  scaling.attention_factor = rope.number("attention_factor", 0, magnitude);
  return scaling;
}

const std::vector<RopeKind>& rope_kinds() {
  static const std::vector<RopeKind> kinds = {
      {"default", {}, &read_default},
      {"linear", {"factor"}, &read_linear},
      {"llama3",
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
       &read_llama3},
      {"yarn",
       {"factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
        "attention_factor", "original_max_position_embeddings"},
       &read_yarn}};
  return kinds;
}

const RopeKind& kind_of(const JsonFields& rope) {
  const auto type = rope.text("rope_type") ? rope.text("rope_type") : rope.text("type");
  const auto legacy_type = rope.text("type");
  if (legacy_type && legacy_type != type) {
    rope.fail("type", '"' + *legacy_type + "\" contradicts \"rope_type\"");
  }
  const auto& kinds = rope_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const RopeKind& kind) {
    return type.value_or("default") == kind.type;
  });
  if (found == kinds.end()) {
    rope.fail("rope_type",
              '"' + *type +
                  "\" is not implemented, only \"default\", \"linear\", \"llama3\" and \"yarn\"");
  }
  return *found;
}

// The object of `rope_scaling` or `rope_parameters`. It describes nothing but the computation, so
// that a field that is not known here is refused.
model::RopeConfig read_object(const JsonFields& rope, double theta, int64_t context_length) {
  const RopeKind& kind = kind_of(rope);
  refuse_unless(rope, {{"partial_rotary_factor", 1.0}});
  static constexpr const char* kCommon[] = {"rope_type", "type", "rope_theta",
                                            "partial_rotary_factor"};
  for (const auto& [name, value] : rope.object().items()) {
    const auto is_name = [&name = name](const char* known) { return name == known; };
    if (!value.is_null() && std::none_of(std::begin(kCommon), std::end(kCommon), is_name) &&
        std::none_of(kind.fields.begin(), kind.fields.end(), is_name)) {
      rope.fail(name.c_str(),
                std::string("is not implemented with rope_type \"") + kind.type + '"');
    }
  }
  return {.theta = rope.number("rope_theta", 0, theta), .scaling = kind.read(rope, context_length)};
}

constexpr const char* kScaling = "rope_scaling";        // of transformers up to 4
constexpr const char* kParameters = "rope_parameters";  // of transformers from 5 on

// The fields of one spelling that have a value, "type" under its later name. Empty if it is
// missing.
Json rope_fields(const JsonFields& fields, const char* spelling) {
  const Json* object = fields.find(spelling);
  if (object != nullptr && !object->is_object()) {
    fields.fail(spelling, "must be an object or null, found " + object->dump());
  }
  Json found = Json::object();
  if (object != nullptr) {
    const bool has_type = object->contains("rope_type");
    for (const auto& [name, value] : object->items()) {
      if (!value.is_null()) {
        found[name == "type" && !has_type ? "rope_type" : name] = value;
      }
    }
  }
  return found;
}

}  // namespace

// Tools that write for transformers 4 and 5 have both spellings: together they say what one says
// alone.
model::RopeConfig read_rope(const JsonFields& fields, int64_t context_length,
                            double default_theta) {
  const double theta = fields.number("rope_theta", 0, default_theta);
  const Json scaling = rope_fields(fields, kScaling);
  Json all = rope_fields(fields, kParameters);
  const std::string spelling = all.empty() ? kScaling : kParameters;
  for (const auto& [name, value] : scaling.items()) {
    const auto other = all.emplace(name, Json(value)).first;
    if (*other != value) {
      fields.fail((std::string(kScaling) + "." + name).c_str(),
                  fmt::format("{} contradicts \"{}.{}\" {}", value.dump(), kParameters, name,
                              other->dump()));
    }
  }
  const model::RopeConfig rope =
      read_object(JsonFields(all, fields.place(), spelling + "."), theta, context_length);
  if (fields.find("rope_theta") != nullptr && rope.theta != theta) {
    fields.fail("rope_theta", fmt::format("{} contradicts \"{}.rope_theta\" {}",
                                          fields.find("rope_theta")->dump(), spelling,
                                          all.at("rope_theta").dump()));
  }
  return rope;
}

}  // namespace llm::families
