#pragma once
// GGUF files made byte by byte, or changed, right or wrong.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/gguf/gguf_file.h"
#include "llm/gguf/gguf_writer.h"

namespace llm::gguf {

/// The bytes of a file, written item by item.
class GgufBytes {
 public:
  template <class Number>
  GgufBytes& number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& whole32(std::uint32_t value) { return number(value); }
  GgufBytes& whole64(std::uint64_t value) { return number(value); }
  GgufBytes& text(std::string_view text) {
    whole64(text.size());
    bytes_.append(text);
    return *this;
  }
  GgufBytes& begin(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    bytes_ = "GGUF";
    return whole32(version).whole64(tensors).whole64(keys);
  }
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& sizes,
                    std::uint32_t type, std::uint64_t offset) {
    text(name).whole32(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) {
      whole64(size);
    }
    return whole32(type).whole64(offset);
  }
  /// Zeros up to the next multiple of 32, and `bytes` more.
  GgufBytes& data(std::size_t bytes) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// A key of a file changed (removed where the value is not given), and a tensor left out or
/// renamed.
struct Edit {
  std::string key = {};
  std::optional<Value> value = std::nullopt;
  std::string tensor = {};
  std::string new_name = {};
};

/// The file with the change, and zeros in place of values.
inline void write_edited(const std::string& from, const std::string& to, const Edit& edit) {
  const GgufFile file(from);
  std::vector<KeyValue> keys;
  for (const KeyValue& one : file.keys()) {
    if (one.key != edit.key) {
      keys.push_back(one);
    }
  }
  if (edit.value) {
    keys.push_back({edit.key, *edit.value});
  }
  std::vector<TensorInfo> tensors;
  for (TensorInfo tensor : file.tensors()) {
    if (tensor.name != edit.tensor || !edit.new_name.empty()) {
      tensor.name = tensor.name == edit.tensor ? edit.new_name : tensor.name;
      tensors.push_back(tensor);
    }
  }
  GgufWriter writer(to, keys, tensors);
  for (const TensorInfo& tensor : tensors) {
    const std::string zeros(tensor.bytes(), '\0');
    writer.write(tensor.name, zeros.data(), zeros.size());
  }
  writer.finish();
}

}  // namespace llm::gguf
