#pragma once
// The header of a safetensors file: 8 bytes of little-endian length, then JSON. Parsed and checked
// in full before anything is believed; knows dtypes by their text. No LibTorch, so that it can be
// fuzzed at full speed.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/strict_json.h"

namespace sherd::detail {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// The largest models of today have about 100,000 tensors in all their files; the entries of this
// many take less than 64 MiB.
constexpr size_t kMaxTensors = size_t{1} << 17;
constexpr size_t kMaxRank = 16;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxTensorKeys = 64;
constexpr size_t kMaxMetadataEntries = size_t{1} << 14;

/// An element type of the format.
struct TensorDtype {
  std::string_view name;
  uint32_t bits;
};

/// The dtype that a header spells `name`; null if the format has none.
const TensorDtype* find_dtype(std::string_view name);

/// A tensor as the header states it. Bytes are counted from the end of the header.
struct TensorRecord {
  std::string name;
  const TensorDtype* dtype = nullptr;
  std::vector<int64_t> shape;
  uint64_t begin_byte = 0;
  uint64_t end_byte = 0;
};

/// What a header says, in the order of the bytes in the file.
struct Header {
  std::vector<TensorRecord> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_begin_bytes = 0;  ///< where the first tensor lies in the file
};

/// The size of a tensor in bits, or nothing if that or a stride does not fit in 63 bits.
std::optional<uint64_t> tensor_bits(const TensorDtype& dtype, const std::vector<int64_t>& shape);

/// A shape as text: "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Reads and checks the header of a file of `file_bytes` bytes; `path` is for messages. Holds no
/// more than a bounded piece of the header besides its result. Throws Error(BadData) naming tensor,
/// expected and found, and whatever `read` throws.
Header parse_header(const std::string& path, uint64_t file_bytes, const files::ReadBytes& read);

/// The bytes that stand before the data: length, JSON, and spaces up to a multiple of 64. Throws
/// Error(BadData) for a string that is not UTF-8.
std::string header_bytes(const std::vector<TensorRecord>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace sherd::detail
