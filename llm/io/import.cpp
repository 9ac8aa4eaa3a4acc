#include "llm/io/import.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "llm/families/family.h"
#include "llm/io/quantized_weights.h"
#include "llm/model/adapter_names.h"
#include "ops/q8_0.h"
#include "sherd/error.h"

namespace llm::io {
namespace {

namespace q8_0 = sherd::ops::q8_0;
using sherd::SafetensorsFolder;
using sherd::SafetensorsLocation;

constexpr const char* kHead = "lm_head.weight";

[[noreturn]] void fail(const std::string& what) {
  throw sherd::Error(sherd::ExitCode::BadData, what);
}

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string place_of(const SafetensorsLocation& location) {
  return location.file->path() + ": tensor " + location.entry->name;
}

SafetensorsLocation find_weight(const SafetensorsFolder& folder, const std::string& name,
                                at::IntArrayRef shape) {
  const auto location = folder.find(name);
  if (!location) {
    fail(fmt::format("{}: tensor {} is missing; the model needs it with shape {}",
                     folder.files().front().path(), name, shape_text(shape)));
  }
  if (at::IntArrayRef(location->entry->shape) != shape) {
    fail(fmt::format("{} has shape {}, expected {} from config.json", place_of(*location),
                     shape_text(location->entry->shape), shape_text(shape)));
  }
  if (!c10::isFloatingType(location->entry->dtype)) {
    fail(fmt::format("{} is stored as {}, expected floats", place_of(*location),
                     location->entry->dtype_name));
  }
  return *location;
}

// Compares two stored tensors a piece at a time.
bool same_values(const SafetensorsLocation& a, const SafetensorsLocation& b) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  if (a.entry->shape != b.entry->shape || a.entry->dtype != b.entry->dtype) {
    return false;
  }
  std::vector<double> left(kPiece), right(kPiece);
  for (int64_t begin = 0; begin < a.entry->numel(); begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, a.entry->numel());
    a.file->read_elements(*a.entry, begin, end, at::kDouble, left.data());
    b.file->read_elements(*b.entry, begin, end, at::kDouble, right.data());
    if (!std::equal(left.begin(), left.begin() + (end - begin), right.begin())) {
      return false;
    }
  }
  return true;
}

// How the folder calls a parameter. Checkpoints of the base model alone, such as the published ones
// of BLOOM, leave its name out: "word_embeddings.weight" is "transformer.word_embeddings.weight".
class Names {
 public:
  Names(const model::CausalLmImpl& model, const SafetensorsFolder& folder)
      : embedding_(model.embedding_name()), prefix_(embedding_, 0, embedding_.find('.') + 1) {
    if (folder.find(embedding_) || !folder.find(embedding_.substr(prefix_.size()))) {
      prefix_.clear();
    }
  }
  [[nodiscard]] std::string in_folder(const std::string& parameter) const {
    return parameter.starts_with(prefix_) ? parameter.substr(prefix_.size()) : parameter;
  }
  [[nodiscard]] std::string embedding() const { return in_folder(embedding_); }

 private:
  std::string embedding_;
  std::string prefix_;  // that the folder leaves out
};

// A tensor of the folder that no parameter is read from.
void check_left_over(const SafetensorsFolder& folder, const SafetensorsLocation& location,
                     const std::string& embedding, const families::TensorRules& rules) {
  const std::string& name = location.entry->name;
  if (std::any_of(rules.derived.begin(), rules.derived.end(),
                  [&](const char* end) { return name.ends_with(end); })) {
    return;
  }
  if (name == kHead) {
    if (same_values(location, *folder.find(embedding))) {
      return;
    }
    fail(fmt::format("{} differs from {}, but config.json says \"tie_word_embeddings\": true",
                     place_of(location), embedding));
  }
  fail(place_of(location) + " is not part of the model that config.json describes");
}

// A tensor of a shard that the index does not name, or of which it names another shard's.
void check_unmapped(const SafetensorsFolder& folder, const SafetensorsLocation& location,
                    const std::string& embedding, const families::TensorRules& rules) {
  const auto named = folder.find(location.entry->name);
  if (!named) {
    check_left_over(folder, location, embedding, rules);
  } else if (!same_values(location, *named)) {
    fail(fmt::format("{} differs from that in {}, which the index names", place_of(location),
                     named->file->path()));
  }
}

}  // namespace

std::vector<WeightSource> match_weights(const model::CausalLmImpl& model,
                                        const SafetensorsFolder& folder) {
  const Names names(model, folder);
  std::vector<WeightSource> sources;
  std::set<std::string> used;
  for (const auto& parameter : model.named_parameters()) {
    if (model::is_of_adapter(parameter.key())) {
      continue;
    }
    const std::string name = names.in_folder(parameter.key());
    sources.push_back(
        {parameter.key(), find_weight(folder, name, q8_0::number_sizes(parameter.value()))});
    used.insert(name);
  }
  const families::TensorRules& rules = families::find_family(model.family())->tensors;
  for (const std::string& name : folder.names()) {
    if (!used.contains(name)) {
      check_left_over(folder, *folder.find(name), names.embedding(), rules);
    }
  }
  for (const SafetensorsLocation& location : folder.unmapped()) {
    check_unmapped(folder, location, names.embedding(), rules);
  }
  return sources;
}

std::function<std::string(const std::string&)> names_in_file(
    const std::vector<WeightSource>& sources) {
  std::map<std::string, std::string> names;
  for (const WeightSource& source : sources) {
    names[source.parameter] = source.location.entry->name;
  }
  return [names = std::move(names)](const std::string& parameter) {
    const auto found = names.find(parameter);
    return found == names.end() ? std::string() : found->second;
  };
}

bool has_weights(const std::string& folder) {
  namespace fs = std::filesystem;
  return fs::exists(folder + "/model.safetensors") ||
         fs::exists(folder + "/model.safetensors.index.json");
}

void load_weights(model::CausalLmImpl& model, const SafetensorsFolder& folder) {
  auto parameters = model.named_parameters();
  for (const WeightSource& source : match_weights(model, folder)) {
    at::Tensor parameter = parameters[source.parameter].detach();
    const auto& [file, entry] = source.location;
    TORCH_CHECK(parameter.is_contiguous() && parameter.device().is_cpu(),
                "[load_weights] expected a parameter in CPU memory: ", source.parameter);
    if (q8_0::is_quantized(parameter)) {
      read_q8_0(source.location, 0, parameter.numel(), parameter.mutable_data_ptr());
    } else {
      file->read_elements(*entry, 0, parameter.numel(), parameter.scalar_type(),
                          parameter.mutable_data_ptr());
    }
  }
}

}  // namespace llm::io
