#include "llm/io/import.h"

#include <algorithm>
#include <set>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "sherd/error.h"

namespace llm::io {
namespace {

using sherd::SafetensorsFolder;
using sherd::SafetensorsLocation;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

[[noreturn]] void fail(const std::string& what) {
  throw sherd::Error(sherd::ExitCode::BadData, what);
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string place_of(const SafetensorsLocation& location) {
  return location.file->path() + ": tensor " + location.entry->name;
}

SafetensorsLocation find_weight(const SafetensorsFolder& folder, const std::string& name,
                                at::IntArrayRef shape) {
  const auto location = folder.find(name);
  if (!location) {
    fail(folder.files().front().path() + ": tensor " + name + " is missing; the model needs it " +
         "with shape " + shape_text(shape));
  }
  if (at::IntArrayRef(location->entry->shape) != shape) {
    fail(place_of(*location) + " has shape " + shape_text(location->entry->shape) + ", expected " +
         shape_text(shape) + " from config.json");
  }
  if (!c10::isFloatingType(location->entry->dtype)) {
    fail(place_of(*location) + " is stored as " + std::string(location->entry->dtype_name) +
         ", expected floats");
  }
  return *location;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
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

void check_left_over(const SafetensorsFolder& folder, const std::string& name) {
  const SafetensorsLocation location = *folder.find(name);
  if (ends_with(name, "rotary_emb.inv_freq")) {
    return;
  }
  if (name == kHead) {
    if (same_values(location, *folder.find(kEmbedding))) {
      return;
    }
    fail(place_of(location) + " differs from " + kEmbedding +
         ", but config.json says \"tie_word_embeddings\": true");
  }
  fail(place_of(location) + " is not part of the model that config.json describes");
}

}  // namespace

std::vector<WeightSource> match_weights(const model::CausalLmImpl& model,
                                        const SafetensorsFolder& folder) {
  std::vector<WeightSource> sources;
  std::set<std::string> used;
  for (const auto& parameter : model.named_parameters()) {
    sources.push_back(
        {parameter.key(), find_weight(folder, parameter.key(), parameter.value().sizes())});
    used.insert(parameter.key());
  }
  for (const std::string& name : folder.names()) {
    if (!used.contains(name)) {
      check_left_over(folder, name);
    }
  }
  return sources;
}

void load_weights(model::CausalLmImpl& model, const SafetensorsFolder& folder) {
  auto parameters = model.named_parameters();
  for (const WeightSource& source : match_weights(model, folder)) {
    at::Tensor parameter = parameters[source.parameter].detach();
    const auto& [file, entry] = source.location;
    TORCH_CHECK(parameter.is_contiguous() && parameter.device().is_cpu(),
                "[load_weights] expected a parameter in CPU memory: ", source.parameter);
    file->read_elements(*entry, 0, parameter.numel(), parameter.scalar_type(),
                        parameter.mutable_data_ptr());
  }
}

}  // namespace llm::io
