#include "llm/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "files/strict_json.h"
#include "llm/gguf/blocks.h"
#include "llm/gguf/header_reader.h"
#include "sherd/error.h"

namespace llm::gguf {
namespace {

double shortest_decimal(float value) {
  return std::stod(fmt::format("{}", value));
}

constexpr std::uint64_t kMaxTensors = 131'072;
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;
constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF", the first byte lowest

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void check_version(HeaderReader& reader) {
  if (reader.number<std::uint32_t>("the first four bytes") != kMagic) {
    reader.refuse("is no GGUF file: it does not begin with \"GGUF\"");
  }
  const auto version = reader.number<std::uint32_t>("the version");
  if (version == 0x03000000 || version == 0x02000000) {
    reader.refuse("is written for processors of the other byte order, which is not read");
  }
  if (version != 2 && version != 3) {
    reader.refuse(fmt::format("is GGUF version {}, only 2 and 3 are read", version));
  }
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path), file_(sherd::files::open_input(path)) {
  const auto reader = std::make_unique<HeaderReader>(path_, file_);
  check_version(*reader);
  const auto tensors = reader->count("the number of tensors", kMaxTensors, 24);
  const auto keys = reader->count("the number of keys", kMaxKeys, 13);
  for (std::uint64_t i = 0; i < keys; ++i) {
    keys_.push_back(reader->key_value());
  }
  index_keys();
  for (std::uint64_t i = 0; i < tensors; ++i) {
    tensors_.push_back(reader->tensor());
  }
  if (const auto alignment = whole(std::string(kAlignmentKey))) {
    alignment_ = static_cast<std::uint64_t>(*alignment);
    if (!std::has_single_bit(alignment_) || alignment_ > kMaxAlignment) {
      refuse(fmt::format("\"{}\" {} is no power of two up to {}", kAlignmentKey, *alignment,
                         kMaxAlignment));
    }
  }
  data_begin_ = rounded_up(reader->position(), alignment_);
  if (data_begin_ > file_.size_bytes && !tensors_.empty()) {
    refuse(
        fmt::format("the file ends, at {} bytes, before its tensors. Was it copied or "
                    "downloaded in full?",
                    file_.size_bytes));
  }
  check_tensors(file_.size_bytes - std::min(data_begin_, file_.size_bytes));
}

void GgufFile::index_keys() {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (!place_of_key_.emplace(keys_[i].key, i).second) {
      refuse("the key " + sherd::files::in_quotes(keys_[i].key) + " is there twice");
    }
  }
}

void GgufFile::check_tensors(std::uint64_t data_bytes) const {
  std::set<std::string_view> names;
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& tensor : tensors_) {
    const std::string what = "tensor " + sherd::files::in_quotes(tensor.name);
    if (!names.insert(tensor.name).second) {
      refuse(what + " is there twice");
    }
    if (tensor.offset % alignment_ != 0) {
      refuse(fmt::format("{} begins at {}, no multiple of {}", what, tensor.offset, alignment_));
    }
    if (tensor.offset > data_bytes || tensor.bytes() > data_bytes - tensor.offset) {
      refuse(
          fmt::format("{} takes {} bytes from {} on, and the file has {} for tensors. Was it "
                      "copied or downloaded in full?",
                      what, tensor.bytes(), tensor.offset, data_bytes));
    }
    by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* one, const auto* other) { return one->offset < other->offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = *by_offset[i - 1];
    if (before.offset + before.bytes() > by_offset[i]->offset) {
      refuse(fmt::format("tensors {} and {} overlap", sherd::files::in_quotes(before.name),
                         sherd::files::in_quotes(by_offset[i]->name)));
    }
  }
}

void GgufFile::refuse(const std::string& what) const {
  throw sherd::Error(sherd::ExitCode::BadData, path_ + ": " + what);
}

const Value* GgufFile::find(std::string_view key) const {
  const auto found = place_of_key_.find(key);
  return found == place_of_key_.end() ? nullptr : &keys_[found->second].value;
}

template <class Content>
const Content* GgufFile::content_of(const std::string& key, const char* kind) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return nullptr;
  }
  const auto* content = std::get_if<Content>(&value->content);
  if (content == nullptr) {
    refuse(fmt::format("the key \"{}\" must be {}", key, kind));
  }
  return content;
}

template <class Content>
const Content& GgufFile::need(const std::string& key, const char* kind) const {
  const auto* content = content_of<Content>(key, kind);
  if (content == nullptr) {
    refuse(fmt::format("the key \"{}\" is missing", key));
  }
  return *content;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  const auto* found = content_of<std::string>(key, "a string");
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<std::int64_t> GgufFile::whole(const std::string& key) const {
  const auto* found = content_of<std::int64_t>(key, "a whole number");
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<bool> GgufFile::flag(const std::string& key) const {
  const auto* found = content_of<bool>(key, "true or false");
  return found == nullptr ? std::nullopt : std::optional(*found);
}

const TensorInfo* GgufFile::find_tensor(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const TensorInfo& one) { return one.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::vector<double> GgufFile::decimals(const TensorInfo& tensor) const {
  const at::Tensor values = read(tensor).to(at::kFloat);
  std::vector<double> decimals;
  for (const float value : std::span(values.const_data_ptr<float>(), values.numel())) {
    if (!std::isfinite(value)) {
      refuse(fmt::format("tensor \"{}\" has the value {}", tensor.name, value));
    }
    decimals.push_back(shortest_decimal(value));
  }
  return decimals;
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const auto* found = content_of<double>(key, "a number");
  if (found == nullptr) {
    return std::nullopt;
  }
  if (!std::isfinite(*found)) {
    refuse(fmt::format("the key \"{}\" must be a finite number, found {}", key, *found));
  }
  if (find(key)->type == ValueType::Float64) {
    return *found;
  }
  return shortest_decimal(static_cast<float>(*found));
}

const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  return need<std::vector<std::string>>(key, "an array of strings");
}

const std::vector<std::int64_t>& GgufFile::wholes(const std::string& key) const {
  return need<std::vector<std::int64_t>>(key, "an array of whole numbers");
}

const std::vector<double>& GgufFile::numbers(const std::string& key) const {
  const auto& found = need<std::vector<double>>(key, "an array of numbers");
  for (const double one : found) {
    if (!std::isfinite(one)) {
      refuse(fmt::format("the key \"{}\" must hold finite numbers, found {}", key, one));
    }
  }
  return found;
}

at::Tensor GgufFile::read(const TensorInfo& tensor) const {
  const TypeLayout& layout = layout_of(tensor.type);
  const auto dtype = tensor.type == TensorType::F16    ? at::kHalf
                     : tensor.type == TensorType::BF16 ? at::kBFloat16
                                                       : at::kFloat;
  at::Tensor values = at::empty(tensor.shape, dtype);
  const std::uint64_t begin = data_begin_ + tensor.offset;
  const int fd = file_.descriptor.get();
  if (layout.block_numbers == 1) {
    sherd::files::read_exactly(fd, path_, begin, values.mutable_data_ptr(), values.nbytes());
    return values;
  }
  const std::int64_t at_once = kReadBytes / layout.block_bytes;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(at_once * layout.block_bytes));
  const std::int64_t blocks = tensor.numel() / layout.block_numbers;
  for (std::int64_t done = 0; done < blocks; done += at_once) {
    const std::int64_t now = std::min(at_once, blocks - done);
    sherd::files::read_exactly(fd, path_,
                               begin + static_cast<std::uint64_t>(done * layout.block_bytes),
                               bytes.data(), static_cast<std::size_t>(now * layout.block_bytes));
    dequantize(tensor.type, bytes.data(), now,
               values.mutable_data_ptr<float>() + done * layout.block_numbers);
  }
  return values;
}

}  // namespace llm::gguf
