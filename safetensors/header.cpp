#include "safetensors/header.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "files/other_kind.h"
#include "safetensors/header_sax.h"
#include "sherd/error.h"

namespace sherd::detail {
namespace {

constexpr std::array<TensorDtype, 22> kDtypes = {{
    {"F64", 64},    {"F32", 32},    {"F16", 16}, {"BF16", 16},       {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},   {"U64", 64},        {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8}, {"C64", 64},        {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6}, {"F6_E3M2", 6},
}};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ExitCode::BadData, path + ": " + what);
}

std::string tensor_text(const TensorRecord& tensor) {
  return "tensor " + files::in_quotes(tensor.name);
}

std::string offsets_text(const TensorRecord& tensor) {
  return "[" + std::to_string(tensor.begin_byte) + ", " + std::to_string(tensor.end_byte) + "]";
}

uint64_t header_length(const std::string& path, uint64_t file_bytes, const files::ReadBytes& read) {
  std::string begin(std::min<uint64_t>(file_bytes, files::kRecognisedBytes), '\0');
  read(0, begin.data(), begin.size());
  files::refuse_git_lfs_pointer(path, begin);
  if (file_bytes < 8) {
    refuse(path, "expected at least 8 bytes of header length, found a file of " +
                     std::to_string(file_bytes));
  }
  uint64_t length = 0;
  for (size_t byte = 8; byte-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(begin[byte]);
  }
  if (length > kMaxHeaderBytes) {
    refuse(path, "expected a header of at most " + std::to_string(kMaxHeaderBytes) +
                     " bytes, found a header length of " + std::to_string(length) +
                     ": not a safetensors file");
  }
  if (length > file_bytes - 8) {
    refuse(path, "header length " + std::to_string(length) +
                     " reaches beyond the file, which has " + std::to_string(file_bytes) +
                     " bytes: truncated?");
  }
  return length;
}

void check_size(const std::string& path, const TensorRecord& tensor) {
  const std::string what = tensor_text(tensor) + ": shape " + shape_text(tensor.shape) + " of " +
                           std::string(tensor.dtype->name);
  const std::optional<uint64_t> bits = tensor_bits(*tensor.dtype, tensor.shape);
  if (!bits) {
    refuse(path, what + " is larger than 2^63 bits");
  }
  if (*bits % 8 != 0) {
    refuse(path, what + " does not fill whole bytes: " + std::to_string(*bits) + " bits");
  }
  if (tensor.end_byte < tensor.begin_byte) {
    refuse(path, tensor_text(tensor) + ": data_offsets " + offsets_text(tensor) +
                     " end before they begin");
  }
  if (const uint64_t found = tensor.end_byte - tensor.begin_byte; found != *bits / 8) {
    refuse(path, what + " takes " + std::to_string(*bits / 8) + " bytes, but data_offsets " +
                     offsets_text(tensor) + " hold " + std::to_string(found));
  }
}

// Without holes and overlaps, no byte of the file has two meanings or none.
void check_contiguous(const std::string& path, const std::vector<TensorRecord>& tensors,
                      uint64_t data_bytes) {
  uint64_t end = 0;
  const TensorRecord* before = nullptr;
  for (const TensorRecord& tensor : tensors) {
    if (tensor.begin_byte != end) {
      const std::string place =
          before == nullptr ? "the data begins" : tensor_text(*before) + " ends";
      refuse(path, tensor_text(tensor) + ": data_offsets " + offsets_text(tensor) +
                       (tensor.begin_byte < end ? " overlap: " : " leave a hole: ") + place +
                       " at byte " + std::to_string(end));
    }
    end = tensor.end_byte;
    before = &tensor;
  }
  if (end > data_bytes) {
    refuse(path, tensor_text(*before) + ": data_offsets " + offsets_text(*before) +
                     " reach beyond the file, which has " + std::to_string(data_bytes) +
                     " bytes of data: truncated?");
  }
  if (end < data_bytes) {
    refuse(path, "expected " + std::to_string(end) + " bytes of data, found " +
                     std::to_string(data_bytes) + ": bytes that belong to no tensor");
  }
}

void check_no_duplicate(const std::string& path, const std::vector<TensorRecord>& tensors) {
  std::vector<const TensorRecord*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorRecord& tensor : tensors) {
    by_name.push_back(&tensor);
  }
  std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  const auto twin = std::adjacent_find(by_name.begin(), by_name.end(),
                                       [](auto* a, auto* b) { return a->name == b->name; });
  if (twin != by_name.end()) {
    refuse(path, tensor_text(**twin) + " occurs twice in the header");
  }
}

}  // namespace

const TensorDtype* find_dtype(std::string_view name) {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&](const TensorDtype& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

std::optional<uint64_t> tensor_bits(const TensorDtype& dtype, const std::vector<int64_t>& shape) {
  // A zero counts as one at first: then the strides fit too.
  int64_t bits = dtype.bits;
  bool empty = false;
  for (const int64_t dim : shape) {
    empty = empty || dim == 0;
    if (dim < 0 || __builtin_mul_overflow(bits, std::max<int64_t>(dim, 1), &bits)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bits);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  }
  return text + "]";
}

Header parse_header(const std::string& path, uint64_t file_bytes, const files::ReadBytes& read) {
  const uint64_t length = header_length(path, file_bytes, read);
  Header header;
  header.data_begin_bytes = 8 + length;
  files::ByteStream bytes(path + ": header", read, 8, length);
  HeaderSax sax(bytes, header);
  files::parse_strict_json(bytes, sax);

  std::vector<TensorRecord>& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const TensorRecord& a, const TensorRecord& b) {
    return std::tie(a.begin_byte, a.end_byte, a.name) < std::tie(b.begin_byte, b.end_byte, b.name);
  });
  for (const TensorRecord& tensor : tensors) {
    check_size(path, tensor);
  }
  check_no_duplicate(path, tensors);
  check_contiguous(path, tensors, file_bytes - header.data_begin_bytes);
  return header;
}

std::string header_bytes(const std::vector<TensorRecord>& tensors,
                         const std::map<std::string, std::string>& metadata) try {
  constexpr size_t kAlignment = 64;
  std::string text(8, '\0');  // the length, filled in last
  text += '{';
  if (!metadata.empty()) {
    text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  }
  for (const TensorRecord& tensor : tensors) {
    text += text.back() == '{' ? "" : ",";
    text += nlohmann::json(tensor.name).dump() + ":{\"dtype\":\"" +
            std::string(tensor.dtype->name) +
            "\",\"shape\":" + nlohmann::json(tensor.shape).dump() + ",\"data_offsets\":[" +
            std::to_string(tensor.begin_byte) + "," + std::to_string(tensor.end_byte) + "]}";
  }
  text += '}';
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = text.size() - 8;
  for (size_t byte = 0; byte < 8; ++byte) {
    text[byte] = static_cast<char>(length >> (8 * byte) & 0xff);
  }
  return text;
} catch (const nlohmann::json::exception& fault) {
  throw Error(ExitCode::BadData,
              std::string("a name or metadata that is not UTF-8: ") + fault.what());
}

}  // namespace sherd::detail
