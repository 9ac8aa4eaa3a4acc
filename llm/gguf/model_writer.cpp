#include "llm/gguf/model_writer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include "llm/gguf/blocks.h"
#include "llm/gguf/tokenizer_keys.h"
#include "llm/model/rope.h"
#include "ops/q8_0.h"
#include "sherd/error.h"

namespace llm::gguf {
namespace {

// llama.cpp's numbers for what most of a file's tensors are.
std::int64_t file_type(FileKind kind) {
  switch (kind) {
    case FileKind::F32:
      return 0;
    case FileKind::F16:
      return 1;
    case FileKind::BF16:
      return 32;
    case FileKind::Q8_0:
      break;
  }
  return 7;
}

TensorType type_in_file(FileKind kind, const std::string& name,
                        const std::vector<std::int64_t>& shape) {
  if (shape.size() == 1 || kind == FileKind::F32 || name == "position_embd.weight") {
    return TensorType::F32;
  }
  if (kind == FileKind::BF16) {
    return TensorType::BF16;
  }
  const bool has_blocks = shape.back() % layout_of(TensorType::Q8_0).block_numbers == 0;
  return kind == FileKind::Q8_0 && has_blocks ? TensorType::Q8_0 : TensorType::F16;
}

// What Llama 3's scaling divides each pair's frequency by, rounded where llama.cpp's converter
// rounds.
at::Tensor llama3_factors(double theta, const model::Llama3Scaling& scaling,
                          std::int64_t head_size) {
  constexpr double kTurn = 6.283185307179586;
  at::Tensor factors = model::rope_frequencies({.theta = theta}, head_size).contiguous().clone();
  const auto original = static_cast<float>(scaling.original_context_tokens);
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  for (float& value :
       std::span(factors.mutable_data_ptr<float>(), static_cast<std::size_t>(factors.numel()))) {
    const float wavelength = 1 / value * static_cast<float>(kTurn);
    if (wavelength < original / high) {
      value = 1;
    } else if (wavelength > original / low) {
      value = factor;
    } else {
      const float smooth = (1 / wavelength * original - low) / (high - low);
      value = 1 / ((1 - smooth) / factor + smooth);
    }
  }
  return factors;
}

void add_values(const char* name, const at::Tensor& values, ModelPlan& plan) {
  plan.tensors.push_back(
      {.info = {.name = name, .type = TensorType::F32, .shape = values.sizes().vec()},
       .parameter = "",
       .values = values});
}

// What each pair's wavelength grows by, where a file holds that as a tensor.
void add_rope_factors(const SourceModel& model, ModelPlan& plan) {
  const model::RopeConfig rope = model.shape.rope.value_or(model::RopeConfig{});
  if (const auto* longer = std::get_if<model::LongRopeScaling>(&rope.scaling)) {
    for (const auto& [name, factors] :
         {std::pair("rope_factors_long.weight", &longer->long_factors),
          {"rope_factors_short.weight", &longer->short_factors}}) {
      std::vector<float> numbers(factors->begin(), factors->end());
      add_values(name, at::from_blob(numbers.data(), {std::ssize(numbers)}, at::kFloat).clone(),
                 plan);
    }
  } else if (const auto* scaling = std::get_if<model::Llama3Scaling>(&rope.scaling)) {
    add_values("rope_freqs.weight", llama3_factors(rope.theta, *scaling, model.shape.head_size),
               plan);
  }
}

}  // namespace

ModelPlan plan_model(const SourceModel& model, const std::string& folder,
                     const std::vector<sherd::SafetensorsSpec>& parameters, FileKind kind,
                     const std::string& name) {
  const Architecture* architecture = architecture_of_model(model.model_type);
  if (architecture == nullptr) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: models of type \"{}\" are not written as GGUF, only {}. "
                                   "Export a Hugging Face folder, with --out",
                                   model.place, model.model_type, written_model_types()));
  }
  ModelPlan plan{.heads = {model.shape.heads, model.shape.key_heads}};
  plan.keys = {{"general.architecture", text_value(architecture->name)},
               {"general.type", text_value("model")},
               {"general.name", text_value(name)}};
  KeyWriter keys(architecture->name);
  architecture->write_keys(model, keys);
  std::move(keys.keys().begin(), keys.keys().end(), std::back_inserter(plan.keys));
  plan.keys.push_back({"general.file_type", uint32_value(file_type(kind))});
  plan.keys.push_back({"general.quantization_version", uint32_value(2)});
  for (const sherd::SafetensorsSpec& parameter : parameters) {
    PlannedTensor tensor{.info = {}, .parameter = parameter.name};
    auto info = info_of_parameter(*architecture, parameter.name, tensor.change);
    if (!info) {
      model.refuse("parameter \"" + parameter.name + '"');
    }
    info->shape = parameter.shape;
    if (tensor.change == Change::Transposed) {
      std::reverse(info->shape.begin(), info->shape.end());
    }
    info->type = type_in_file(kind, info->name, info->shape);
    tensor.info = std::move(*info);
    plan.tensors.push_back(std::move(tensor));
  }
  add_rope_factors(model, plan);
  TokenizerKeys tokenizer = tokenizer_keys(folder, model.shape.vocab_size, name);
  std::move(tokenizer.keys.begin(), tokenizer.keys.end(), std::back_inserter(plan.keys));
  plan.stop_tokens = std::move(tokenizer.stop_tokens);
  return plan;
}

namespace {

std::vector<TensorInfo> infos_of(const ModelPlan& plan) {
  std::vector<TensorInfo> infos;
  for (const PlannedTensor& tensor : plan.tensors) {
    infos.push_back(tensor.info);
  }
  return infos;
}

at::Tensor as_q8_0(const at::Tensor& values) {
  const std::int64_t blocks = values.numel() / layout_of(TensorType::Q8_0).block_numbers;
  at::Tensor bytes =
      at::empty({blocks * layout_of(TensorType::Q8_0).block_bytes}, at::TensorOptions(at::kByte));
  sherd::ops::q8_0::quantize(values.const_data_ptr<float>(), blocks,
                             bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

at::Tensor in_type(const at::Tensor& values, TensorType type) {
  switch (type) {
    case TensorType::F16:
      return values.to(at::kHalf);
    case TensorType::BF16:
      return values.to(at::kBFloat16);
    case TensorType::Q8_0:
      return as_q8_0(values);
    default:
      return values;
  }
}

// Beyond this a value is infinite in F16, and a scale of Q8_0 is.
double largest_value(TensorType type) {
  switch (type) {
    case TensorType::F16:
      return 65'519;
    case TensorType::Q8_0:
      return 65'519.0 * 127;
    default:
      return 3.3895e38;
  }
}

}  // namespace

ModelWriter::ModelWriter(const std::string& path, ModelPlan plan)
    : plan_(std::move(plan)), file_(path, plan_.keys, infos_of(plan_)) {}

void ModelWriter::write(const PlannedTensor& tensor, const at::Tensor& values) {
  const TensorInfo& info = tensor.info;
  at::Tensor found = tensor.values;
  if (!tensor.parameter.empty()) {
    std::vector<std::int64_t> shape = info.shape;
    if (tensor.change == Change::Transposed) {
      std::reverse(shape.begin(), shape.end());
    }
    found = to_gguf(values.reshape(shape), tensor.change, plan_.heads);
  }
  const auto [least, most] = at::aminmax(found);  // either is NaN where a value is
  const double largest = std::max(-least.item<double>(), most.item<double>());
  if (!(largest < largest_value(info.type))) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("parameter \"{}\" holds {}, which {} cannot hold. {}", tensor.parameter,
                    largest, layout_of(info.type).name,
                    std::isfinite(largest) ? "Write it with --dtype bf16 or f32"
                                           : "The weights are damaged: take another checkpoint"));
  }
  const at::Tensor stored = in_type(found.contiguous(), info.type);
  file_.write(info.name, stored.const_data_ptr(), stored.nbytes());
}

}  // namespace llm::gguf
