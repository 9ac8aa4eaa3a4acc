#include "llm/gguf/header_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "files/strict_json.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::gguf {
namespace {

constexpr std::uint64_t kMaxKeyBytes = 65'535;
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxTensorNameBytes = 64;
constexpr std::uint32_t kMaxDimensions = 4;
// Products of sizes and their bytes stay far below 2^63.
constexpr std::uint64_t kMaxNumbers = std::uint64_t{1} << 48;

std::uint64_t item_bytes(ValueType type) {
  switch (type) {
    case ValueType::Uint8:
    case ValueType::Int8:
    case ValueType::Bool:
      return 1;
    case ValueType::Uint16:
    case ValueType::Int16:
      return 2;
    case ValueType::Uint32:
    case ValueType::Int32:
    case ValueType::Float32:
      return 4;
    case ValueType::String:
    case ValueType::Array:
    case ValueType::Uint64:
    case ValueType::Int64:
    case ValueType::Float64:
      break;
  }
  return 8;
}

}  // namespace

void HeaderReader::refuse(const std::string& what) const {
  throw sherd::Error(sherd::ExitCode::BadData,
                     fmt::format("{}: byte {}: {}", path_, position_, what));
}

void HeaderReader::read(void* out, std::size_t bytes, const std::string& what) {
  if (bytes > file_.size_bytes - position_) {
    refuse(fmt::format("the file ends, at {} bytes, in {}. Was it copied or downloaded in full?",
                       file_.size_bytes, what));
  }
  if (position_ + bytes > kMaxHeaderBytes) {
    refuse(fmt::format("keys and tensors take more than {} bytes", kMaxHeaderBytes));
  }
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    if (position_ == buffer_begin_ + buffer_bytes_) {
      buffer_begin_ = position_;
      buffer_bytes_ = static_cast<std::size_t>(
          std::min<std::uint64_t>(buffer_.size(), file_.size_bytes - position_));
      sherd::files::read_exactly(file_.descriptor.get(), path_, position_, buffer_.data(),
                                 buffer_bytes_);
    }
    const auto at = static_cast<std::size_t>(position_ - buffer_begin_);
    const std::size_t now = std::min(bytes, buffer_bytes_ - at);
    std::memcpy(to, buffer_.data() + at, now);
    to += now;
    bytes -= now;
    position_ += now;
  }
}

std::uint64_t HeaderReader::count(const std::string& what, std::uint64_t most,
                                  std::uint64_t least_bytes) {
  const auto found = number<std::uint64_t>(what);
  if (found > most || found > (file_.size_bytes - position_) / least_bytes) {
    refuse(fmt::format("{} is {}, more than the file can hold, or than the {} that are read", what,
                       found, most));
  }
  return found;
}

std::string HeaderReader::text(const std::string& what, std::uint64_t max_bytes) {
  const std::uint64_t bytes = count("the length of " + what, max_bytes, 1);
  std::string found(static_cast<std::size_t>(bytes), '\0');
  read(found.data(), found.size(), what);
  if (llm::text::first_byte_without_utf8(found)) {
    refuse(what + " is not UTF-8");
  }
  return found;
}

ValueType HeaderReader::value_type(const std::string& what) {
  const auto type = number<std::uint32_t>("the type of " + what);
  if (type > static_cast<std::uint32_t>(ValueType::Float64)) {
    refuse(fmt::format("{} has type {}, which GGUF does not know", what, type));
  }
  return static_cast<ValueType>(type);
}

Value HeaderReader::value(ValueType type, const std::string& what) {
  switch (type) {
    case ValueType::Uint8:
      return {type, std::int64_t{number<std::uint8_t>(what)}};
    case ValueType::Int8:
      return {type, std::int64_t{number<std::int8_t>(what)}};
    case ValueType::Uint16:
      return {type, std::int64_t{number<std::uint16_t>(what)}};
    case ValueType::Int16:
      return {type, std::int64_t{number<std::int16_t>(what)}};
    case ValueType::Uint32:
      return {type, std::int64_t{number<std::uint32_t>(what)}};
    case ValueType::Int32:
      return {type, std::int64_t{number<std::int32_t>(what)}};
    case ValueType::Int64:
      return {type, number<std::int64_t>(what)};
    case ValueType::Uint64: {
      const auto found = number<std::uint64_t>(what);
      if (found > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse(fmt::format("{} is {}, beyond what is read", what, found));
      }
      return {type, static_cast<std::int64_t>(found)};
    }
    case ValueType::Float32:
      return {type, static_cast<double>(number<float>(what))};
    case ValueType::Float64:
      return {type, number<double>(what)};
    case ValueType::Bool: {
      const auto found = number<std::uint8_t>(what);
      if (found > 1) {
        refuse(fmt::format("{} must be 0 or 1, found {}", what, found));
      }
      return {type, found == 1};
    }
    case ValueType::String:
      return {type, text(what, kMaxTextBytes)};
    case ValueType::Array:
      break;
  }
  return array(what);
}

Value HeaderReader::array(const std::string& what) {
  const ValueType type = value_type("the items of " + what);
  if (type == ValueType::Array) {
    refuse(what + " is an array of arrays, which is not read");
  }
  const std::uint64_t size =
      count("the number of items of " + what, kMaxItems - items_, item_bytes(type));
  items_ += size;
  if (type == ValueType::String) {
    std::vector<std::string> found;
    for (std::uint64_t i = 0; i < size; ++i) {
      found.push_back(text("an item of " + what, kMaxTextBytes));
    }
    return {ValueType::Array, std::move(found), type};
  }
  if (type == ValueType::Float32 || type == ValueType::Float64) {
    std::vector<double> found;
    for (std::uint64_t i = 0; i < size; ++i) {
      found.push_back(std::get<double>(value(type, what).content));
    }
    return {ValueType::Array, std::move(found), type};
  }
  std::vector<std::int64_t> found;
  for (std::uint64_t i = 0; i < size; ++i) {
    const Value item = value(type, what);
    const bool* flag = std::get_if<bool>(&item.content);
    found.push_back(flag != nullptr ? std::int64_t{*flag} : std::get<std::int64_t>(item.content));
  }
  return {ValueType::Array, std::move(found), type};
}

KeyValue HeaderReader::key_value() {
  std::string key = text("a key", kMaxKeyBytes);
  const std::string what = sherd::files::in_quotes(key);
  const ValueType type = value_type(what);
  return {std::move(key), value(type, what)};
}

TensorInfo HeaderReader::tensor() {
  TensorInfo tensor;
  tensor.name = text("a tensor's name", kMaxTensorNameBytes);
  const std::string what = "tensor " + sherd::files::in_quotes(tensor.name);
  const auto dimensions = number<std::uint32_t>("the dimensions of " + what);
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    refuse(fmt::format("{} has {} dimensions, expected 1 to {}", what, dimensions, kMaxDimensions));
  }
  std::uint64_t numbers = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = number<std::uint64_t>("the sizes of " + what);
    if (size < 1 || size > kMaxNumbers / numbers) {
      refuse(
          fmt::format("{} has a dimension of {}, which no tensor of a file can have", what, size));
    }
    numbers *= size;
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = number<std::uint32_t>("the type of " + what);
  const auto& layouts = type_layouts();
  const auto layout = std::find_if(layouts.begin(), layouts.end(), [&](const TypeLayout& one) {
    return static_cast<std::uint32_t>(one.type) == type;
  });
  if (layout == layouts.end()) {
    refuse(
        fmt::format("{} has type {}, which is not read, only F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
                    "Q5_0, Q4_K and Q6_K. llama.cpp's llama-quantize writes such a file: give "
                    "it --allow-requantize and Q8_0",
                    what, type));
  }
  tensor.type = layout->type;
  if (tensor.shape.back() % layout->block_numbers != 0) {
    refuse(fmt::format("{} has rows of {} numbers, no multiple of the {} of a block of {}", what,
                       tensor.shape.back(), layout->block_numbers, layout->name));
  }
  tensor.offset = number<std::uint64_t>("the offset of " + what);
  return tensor;
}

}  // namespace llm::gguf
