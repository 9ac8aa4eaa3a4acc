#pragma once
// What a GGUF file holds beside its tensors' bytes: keys with values, and the types of tensors.
// Source: github.com/ggml-org/ggml, docs/gguf.md.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace llm::gguf {

/// Types of values, by their numbers in a file.
enum class ValueType : std::uint32_t {
  Uint8,
  Int8,
  Uint16,
  Int16,
  Uint32,
  Int32,
  Float32,
  Bool,
  String,
  Array,
  Uint64,
  Int64,
  Float64
};

/// A value. Whole numbers and booleans of arrays are int64; numbers with a point are double.
struct Value {
  ValueType type = ValueType::Bool;
  std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
               std::vector<double>, std::vector<std::string>>
      content = false;
  ValueType item = ValueType::Bool;  ///< the type of an array's items

  bool operator==(const Value&) const = default;
};

struct KeyValue {
  std::string key;
  Value value;
};

[[nodiscard]] Value uint32_value(std::int64_t value);
[[nodiscard]] Value float32_value(double value);
[[nodiscard]] Value bool_value(bool value);
[[nodiscard]] Value text_value(std::string value);
[[nodiscard]] Value texts_value(std::vector<std::string> values);
[[nodiscard]] Value int32s_value(std::vector<std::int64_t> values);
[[nodiscard]] Value float32s_value(std::vector<double> values);

/// Types of tensors that are read, by their numbers in a file.
enum class TensorType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q8_0 = 8,
  Q4_K = 12,
  Q6_K = 14,
  BF16 = 30
};

/// How the numbers of a tensor lie: in blocks of so many numbers and so many bytes.
struct TypeLayout {
  TensorType type;
  const char* name;
  std::int64_t block_numbers;
  std::int64_t block_bytes;
};

/// All types that are read.
[[nodiscard]] const std::vector<TypeLayout>& type_layouts();
[[nodiscard]] const TypeLayout& layout_of(TensorType type);

/// A tensor of a file. Sizes are in the order of Hugging Face: the last varies fastest.
struct TensorInfo {
  std::string name = {};
  TensorType type = TensorType::F32;
  std::vector<std::int64_t> shape = {};
  std::uint64_t offset = 0;  ///< from the beginning of the file's tensors

  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::uint64_t bytes() const;
};

/// Bytes that a tensor's offset is a multiple of, where `general.alignment` says nothing.
inline constexpr std::uint64_t kDefaultAlignment = 32;
inline constexpr std::string_view kAlignmentKey = "general.alignment";

}  // namespace llm::gguf
