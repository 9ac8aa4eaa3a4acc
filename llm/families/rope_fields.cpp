#include "llm/families/rope_fields.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/core.h>

#include "llm/families/fixed_fields.h"

namespace llm::families {
namespace {

using Json = nlohmann::ordered_json;

// The dimensions of a head that rotate come in pairs.
int64_t pairs_of(const RopeSetting& setting, double rotated_share) {
  return model::RopeConfig{.rotated_share = rotated_share}.rotated_size(setting.head_size) / 2;
}

// A kind of rope, and the fields that it has beside those of all.
struct RopeKind {
  const char* type;
  std::vector<const char*> fields;
  model::RopeScaling (*read)(const JsonFields& rope, const RopeSetting& setting);
};

model::RopeScaling read_default(const JsonFields& /*rope*/, const RopeSetting& /*setting*/) {
  return {};
}

model::RopeScaling read_linear(const JsonFields& rope, const RopeSetting& /*setting*/) {
  return model::LinearScaling{rope.number("factor", 0)};
}

model::RopeScaling read_llama3(const JsonFields& rope, const RopeSetting& /*setting*/) {
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

model::RopeScaling read_yarn(const JsonFields& rope, const RopeSetting& setting) {
  model::YarnScaling scaling = {
      .factor = rope.number("factor", 0),
      .beta_fast = rope.number("beta_fast", 0, 32),
      .beta_slow = rope.number("beta_slow", 0, 1),
      .truncate = rope.flag("truncate", true),
      .original_context_tokens = rope.count("original_max_position_embeddings",
                                            JsonFields::kMostUnits, setting.context_length)};
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

std::vector<double> read_factors(const JsonFields& rope, const char* name) {
  const Json* found = rope.find(name);
  if (found == nullptr || !found->is_array()) {
    rope.fail(name, "must be a list of numbers");
  }
  std::vector<double> factors;
  for (const Json& factor : *found) {
    if (!factor.is_number() || !std::isfinite(factor.get<double>()) || factor.get<double>() <= 0) {
      rope.fail(name, "must hold numbers above 0, found " + factor.dump());
    }
    factors.push_back(factor.get<double>());
  }
  return factors;
}

model::RopeScaling read_longrope(const JsonFields& rope, const RopeSetting& setting) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int64_t inside = rope.count(kOriginal, JsonFields::kMostUnits, 0);
  if (inside == 0 && setting.original_context == 0) {
    rope.fail(kOriginal, "is missing");
  }
  model::LongRopeScaling scaling = {
      .short_factors = read_factors(rope, "short_factor"),
      .long_factors = read_factors(rope, "long_factor"),
      .original_context_tokens = setting.original_context != 0 ? setting.original_context : inside};
  const auto original = static_cast<double>(scaling.original_context_tokens);
  const double factor =
      rope.number("factor", 0, static_cast<double>(setting.context_length) / original);
  scaling.attention_factor =
      rope.number("attention_factor", 0,
                  factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
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
       &read_yarn},
      {"longrope",
       {"short_factor", "long_factor", "factor", "attention_factor",
        "original_max_position_embeddings"},
       &read_longrope}};
  return kinds;
}

const RopeKind& kind_of(const JsonFields& rope, const RopeSetting& setting) {
  const auto given = rope.text("rope_type") ? rope.text("rope_type") : rope.text("type");
  const auto legacy_type = rope.text("type");
  if (legacy_type && legacy_type != given) {
    rope.fail("type", '"' + *legacy_type + "\" contradicts \"rope_type\"");
  }
  std::string type = given.value_or("default");
  if (setting.yarn_is_longrope && (type == "yarn" || type == "su")) {
    type = "longrope";
  }
  const auto& kinds = rope_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const RopeKind& kind) { return type == kind.type; });
  if (found == kinds.end()) {
    rope.fail("rope_type", '"' + type +
                               "\" is not implemented, only \"default\", \"linear\", \"llama3\", "
                               "\"yarn\" and \"longrope\"");
  }
  return *found;
}

// The share of a head's dimensions that rotates.
double read_share(const JsonFields& rope, const RopeSetting& setting, double share) {
  constexpr const char* kShare = "partial_rotary_factor";
  if (!setting.is_partial) {
    refuse_unless(rope, {{kShare, 1.0}});
    return 1;
  }
  share = rope.number(kShare, 0, share);
  const int64_t rotated = model::RopeConfig{.rotated_share = share}.rotated_size(setting.head_size);
  if (share > 1 || rotated < 2 || rotated % 2 != 0) {
    rope.fail(kShare,
              fmt::format("{} makes {} of a head's {} dimensions rotate; the number must be "
                          "even, from 2 to {}",
                          share, rotated, setting.head_size, setting.head_size));
  }
  return share;
}

void check_factors(const JsonFields& rope, const model::RopeConfig& config,
                   const RopeSetting& setting) {
  const auto* scaling = std::get_if<model::LongRopeScaling>(&config.scaling);
  if (scaling == nullptr) {
    return;
  }
  const int64_t pairs = pairs_of(setting, config.rotated_share);
  for (const auto& [name, factors] : {std::pair("short_factor", &scaling->short_factors),
                                      std::pair("long_factor", &scaling->long_factors)}) {
    if (static_cast<int64_t>(factors->size()) != pairs) {
      rope.fail(name, fmt::format("has {} factors; a head has {} pairs of dimensions that rotate",
                                  factors->size(), pairs));
    }
  }
}

// The object of `rope_scaling` or `rope_parameters`. It describes nothing but the computation, so
// that a field that is not known here is refused. `share`: outside of it.
model::RopeConfig read_object(const JsonFields& rope, const RopeSetting& setting, double theta,
                              double share) {
  const RopeKind& kind = kind_of(rope, setting);
  static constexpr const char* kCommon[] = {"rope_type", "type", "rope_theta",
                                            "partial_rotary_factor"};
  model::RopeConfig config = {.theta = rope.number("rope_theta", 0, theta),
                              .rotated_share = read_share(rope, setting, share)};
  for (const auto& [name, value] : rope.object().items()) {
    const auto is_name = [&name = name](const char* known) { return name == known; };
    if (!value.is_null() && std::none_of(std::begin(kCommon), std::end(kCommon), is_name) &&
        std::none_of(kind.fields.begin(), kind.fields.end(), is_name)) {
      rope.fail(name.c_str(),
                std::string("is not implemented with rope_type \"") + kind.type + '"');
    }
  }
  config.scaling = kind.read(rope, setting);
  check_factors(rope, config, setting);
  return config;
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
model::RopeConfig read_rope(const JsonFields& fields, const RopeSetting& setting) {
  const double theta = fields.number("rope_theta", 0, setting.theta);
  if (!setting.is_partial) {
    refuse_unless(fields, {{"partial_rotary_factor", 1.0}});
  }
  const double share = fields.number("partial_rotary_factor", 0, setting.rotated_share);
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
      read_object(JsonFields(all, fields.place(), spelling + "."), setting, theta, share);
  const auto require_same = [&](const char* name, double outside, double inside) {
    if (fields.find(name) != nullptr && inside != outside) {
      fields.fail(name, fmt::format("{} contradicts \"{}.{}\" {}", fields.find(name)->dump(),
                                    spelling, name, all.at(name).dump()));
    }
  };
  require_same("rope_theta", theta, rope.theta);
  require_same("partial_rotary_factor", share, rope.rotated_share);
  return rope;
}

LayerRopes read_layer_ropes(const JsonFields& fields, const RopeSetting& setting,
                            const WindowRope& window) {
  constexpr const char* kFull = "full_attention";
  constexpr const char* kWindow = "sliding_attention";
  const Json by_layer = rope_fields(fields, kParameters);
  for (const auto& [name, value] : by_layer.items()) {
    if (name != kFull && name != kWindow) {
      fields.fail(
          (std::string(kParameters) + "." + name).c_str(),
          fmt::format("is not a type of layer, only \"{}\" and \"{}\" are", kFull, kWindow));
    }
  }
  refuse_unless(fields, {{"partial_rotary_factor", 1.0}});
  if (fields.object().contains("sliding_window") && fields.find("sliding_window") == nullptr) {
    fields.fail(
        "sliding_window",
        "must be a number of tokens, found null: layers with a window have rotary positions "
        "of their own");
  }
  Json full = Json::object(), windowed = Json::object();
  const auto take = [&](Json& to, const char* name, const char* from) {
    if (const Json* found = fields.find(from); found != nullptr) {
      to[name] = *found;
    }
  };
  take(full, "rope_theta", "rope_theta");
  take(full, kScaling, kScaling);
  take(windowed, "rope_theta", window.theta_field != nullptr ? window.theta_field : "rope_theta");
  for (auto& [to, name] : {std::pair<Json&, const char*>(full, kFull), {windowed, kWindow}}) {
    if (by_layer.contains(name)) {
      to[kParameters] = by_layer[name];
    }
  }
  RopeSetting of_window = setting;
  of_window.theta = window.theta;
  const std::string place = fields.place() + ", ";
  return {read_rope(JsonFields(full, place + kFull), setting),
          read_rope(JsonFields(windowed, place + kWindow), of_window)};
}

}  // namespace llm::families
