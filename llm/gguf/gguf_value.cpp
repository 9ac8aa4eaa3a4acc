#include "llm/gguf/gguf_value.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace llm::gguf {

Value uint32_value(std::int64_t value) {
  return {ValueType::Uint32, value};
}

Value float32_value(double value) {
  return {ValueType::Float32, static_cast<double>(static_cast<float>(value))};
}

Value bool_value(bool value) {
  return {ValueType::Bool, value};
}

Value text_value(std::string value) {
  return {ValueType::String, std::move(value)};
}

Value texts_value(std::vector<std::string> values) {
  return {ValueType::Array, std::move(values), ValueType::String};
}

Value int32s_value(std::vector<std::int64_t> values) {
  return {ValueType::Array, std::move(values), ValueType::Int32};
}

Value float32s_value(std::vector<double> values) {
  return {ValueType::Array, std::move(values), ValueType::Float32};
}

const std::vector<TypeLayout>& type_layouts() {
  static const std::vector<TypeLayout> layouts = {
      {TensorType::F32, "F32", 1, 4},       {TensorType::F16, "F16", 1, 2},
      {TensorType::BF16, "BF16", 1, 2},     {TensorType::Q8_0, "Q8_0", 32, 34},
      {TensorType::Q4_0, "Q4_0", 32, 18},   {TensorType::Q4_1, "Q4_1", 32, 20},
      {TensorType::Q5_0, "Q5_0", 32, 22},   {TensorType::Q4_K, "Q4_K", 256, 144},
      {TensorType::Q6_K, "Q6_K", 256, 210},
  };
  return layouts;
}

const TypeLayout& layout_of(TensorType type) {
  const auto& layouts = type_layouts();
  return *std::find_if(layouts.begin(), layouts.end(),
                       [&](const TypeLayout& layout) { return layout.type == type; });
}

std::int64_t TensorInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::uint64_t TensorInfo::bytes() const {
  const TypeLayout& layout = layout_of(type);
  return static_cast<std::uint64_t>(numel() / layout.block_numbers * layout.block_bytes);
}

}  // namespace llm::gguf
