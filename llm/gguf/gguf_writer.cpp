#include "llm/gguf/gguf_writer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

namespace llm::gguf {
namespace {

constexpr std::string_view kBeginning = "GGUF";
constexpr std::uint32_t kVersion = 3;

// The bytes before the tensors.
class HeaderBytes {
 public:
  template <class Number>
  void number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void raw(std::string_view text) { bytes_.append(text); }
  void text(std::string_view text) {
    number<std::uint64_t>(text.size());
    bytes_.append(text);
  }
  void type(ValueType type) { number(static_cast<std::uint32_t>(type)); }
  void whole(ValueType type, std::int64_t value);
  void point(ValueType type, double value);
  void key_value(const KeyValue& one);
  void tensor(const TensorInfo& tensor);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

void HeaderBytes::whole(ValueType type, std::int64_t value) {
  switch (type) {
    case ValueType::Uint32:
      return number(static_cast<std::uint32_t>(value));
    case ValueType::Int32:
      return number(static_cast<std::int32_t>(value));
    default:
      TORCH_INTERNAL_ASSERT(false, "no key is written in this type of whole number");
  }
}

void HeaderBytes::point(ValueType type, double value) {
  TORCH_INTERNAL_ASSERT(type == ValueType::Float32);
  number(static_cast<float>(value));
}

void HeaderBytes::key_value(const KeyValue& one) {
  const Value& value = one.value;
  text(one.key);
  type(value.type);
  const auto array = [&](const auto& items, const auto& write) {
    type(value.item);
    number<std::uint64_t>(items.size());
    std::for_each(items.begin(), items.end(), write);
  };
  if (const auto* flag = std::get_if<bool>(&value.content)) {
    number(static_cast<std::uint8_t>(*flag ? 1 : 0));
  } else if (const auto* count = std::get_if<std::int64_t>(&value.content)) {
    whole(value.type, *count);
  } else if (const auto* real = std::get_if<double>(&value.content)) {
    point(value.type, *real);
  } else if (const auto* words = std::get_if<std::string>(&value.content)) {
    text(*words);
  } else if (const auto* counts = std::get_if<std::vector<std::int64_t>>(&value.content)) {
    array(*counts, [&](std::int64_t item) { whole(value.item, item); });
  } else if (const auto* reals = std::get_if<std::vector<double>>(&value.content)) {
    array(*reals, [&](double item) { point(value.item, item); });
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value.content)) {
    array(*texts, [&](const std::string& item) { text(item); });
  }
}

void HeaderBytes::tensor(const TensorInfo& tensor) {
  text(tensor.name);
  number(static_cast<std::uint32_t>(tensor.shape.size()));
  std::for_each(tensor.shape.rbegin(), tensor.shape.rend(),
                [&](std::int64_t size) { number(static_cast<std::uint64_t>(size)); });
  number(static_cast<std::uint32_t>(tensor.type));
  number(tensor.offset);
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kDefaultAlignment - 1) / kDefaultAlignment * kDefaultAlignment;
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path, const std::vector<KeyValue>& keys,
                       std::vector<TensorInfo> tensors)
    : file_(path) {
  HeaderBytes header;
  header.raw(kBeginning);
  header.number(kVersion);
  header.number<std::uint64_t>(tensors.size());
  header.number<std::uint64_t>(keys.size());
  for (const KeyValue& one : keys) {
    header.key_value(one);
  }
  std::uint64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    tensor.offset = end;
    end = aligned(end + tensor.bytes());
    header.tensor(tensor);
  }
  data_begin_ = aligned(header.bytes().size());
  file_bytes_ = data_begin_ + end;
  file_.reserve(file_bytes_);
  file_.write(0, header.bytes().data(), header.bytes().size());
  // The last tensor is padded too; a file that could not be reserved is grown to its size here.
  file_.write(file_bytes_ - 1, "", 1);
  for (TensorInfo& tensor : tensors) {
    missing_.emplace(tensor.name, std::move(tensor));
  }
}

void GgufWriter::write(const std::string& name, const void* data, std::uint64_t bytes) {
  const auto found = missing_.find(name);
  TORCH_INTERNAL_ASSERT(found != missing_.end() && found->second.bytes() == bytes, name);
  const std::uint64_t begin = data_begin_ + found->second.offset;
  file_.write(begin, data, bytes);
  file_.begin_writeback(begin, bytes);
  missing_.erase(found);
}

void GgufWriter::finish() {
  TORCH_INTERNAL_ASSERT(missing_.empty(), missing_.begin()->first, " is not written");
  file_.commit();
}

}  // namespace llm::gguf
