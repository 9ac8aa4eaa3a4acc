#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>

#include "files/input.h"
#include "safetensors/check_use.h"
#include "safetensors/header.h"
#include "safetensors/scalar_types.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace sherd {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

bool is_float(at::ScalarType type) {
  return type == at::ScalarType::Double || type == at::ScalarType::Float ||
         type == at::ScalarType::Half || type == at::ScalarType::BFloat16;
}

[[noreturn]] void refuse(const std::string& path, const SafetensorsEntry& entry,
                         const std::string& what) {
  throw Error(ExitCode::BadData, path + ": tensor " + files::in_quotes(entry.name) + what);
}

void check_dtype(const std::string& path, const SafetensorsEntry& entry) {
  if (entry.dtype == at::ScalarType::Undefined) {
    refuse(path, entry,
           " is " + std::string(entry.dtype_name) +
               ", which Sherd does not read: convert it to F32, BF16 or F16");
  }
}

// A bool with another bit pattern is undefined behaviour for code that computes with it.
void check_bools(const std::string& path, const SafetensorsEntry& entry, const uint8_t* values,
                 int64_t count) {
  const uint8_t* wrong =
      std::find_if(values, values + count, [](uint8_t value) { return value > 1; });
  if (wrong != values + count) {
    refuse(path, entry, ": expected 0 or 1 in a BOOL, found " + std::to_string(*wrong));
  }
}

}  // namespace

int64_t SafetensorsEntry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

struct SafetensorsFile::Impl {
  std::string path;
  files::FileDescriptor descriptor;
  uint64_t data_begin_bytes = 0;
  std::vector<SafetensorsEntry> entries;
  std::vector<uint32_t> by_name;  // indices into entries
  std::map<std::string, std::string> metadata;

  explicit Impl(const std::string& file_path) : path(file_path) {
    files::InputFile input = files::open_input(path);
    descriptor = std::move(input.descriptor);
    detail::Header header = detail::parse_header(
        path, input.size_bytes, [this](uint64_t offset, void* out, size_t bytes) {
          files::read_exactly(descriptor.get(), path, offset, out, bytes);
        });
    data_begin_bytes = header.data_begin_bytes;
    metadata = std::move(header.metadata);
    entries.reserve(header.tensors.size());
    for (detail::TensorRecord& tensor : header.tensors) {
      entries.push_back({std::move(tensor.name), detail::scalar_type_of(*tensor.dtype),
                         tensor.dtype->name, std::move(tensor.shape), tensor.begin_byte,
                         tensor.end_byte});
    }
    by_name.resize(entries.size());
    std::iota(by_name.begin(), by_name.end(), 0U);
    std::sort(by_name.begin(), by_name.end(),
              [this](uint32_t a, uint32_t b) { return entries[a].name < entries[b].name; });
  }

  const SafetensorsEntry* find(std::string_view name) const {
    const auto found = std::lower_bound(
        by_name.begin(), by_name.end(), name,
        [this](uint32_t index, std::string_view wanted) { return entries[index].name < wanted; });
    return found != by_name.end() && entries[*found].name == name ? &entries[*found] : nullptr;
  }

  void read_bytes(uint64_t offset, void* out, size_t bytes) const {
    files::read_exactly(descriptor.get(), path, data_begin_bytes + offset, out, bytes);
  }

  void read_converted(const SafetensorsEntry& entry, int64_t begin, int64_t end, at::ScalarType as,
                      void* out) const {
    const size_t item_bytes = c10::elementSize(entry.dtype);
    const auto piece_items = static_cast<int64_t>(kBufferBytes / item_bytes);
    const auto buffer = std::make_unique_for_overwrite<double[]>(
        (std::min<size_t>(kBufferBytes, static_cast<size_t>(end - begin) * item_bytes) + 7) / 8);
    for (int64_t item = begin; item < end; item += piece_items) {
      const int64_t items = std::min(piece_items, end - item);
      read_bytes(entry.begin_byte + static_cast<uint64_t>(item) * item_bytes, buffer.get(),
                 static_cast<size_t>(items) * item_bytes);
      char* to = static_cast<char*>(out) + static_cast<size_t>(item - begin) * c10::elementSize(as);
      at::from_blob(to, {items}, at::TensorOptions(as))
          .copy_(at::from_blob(buffer.get(), {items}, at::TensorOptions(entry.dtype)));
    }
  }
};

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::path() const {
  return impl_->path;
}
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const {
  return impl_->entries;
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}
bool SafetensorsFile::contains(std::string_view name) const {
  return impl_->find(name) != nullptr;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const SafetensorsEntry* entry = impl_->find(name);
  if (entry != nullptr) {
    check_dtype(path(), *entry);
  }
  return entry;
}

void SafetensorsFile::read_elements(const SafetensorsEntry& entry, int64_t begin, int64_t end,
                                    at::ScalarType as, void* out) const {
  check_dtype(path(), entry);
  detail::check_use(0 <= begin && begin <= end && end <= entry.numel(), path(), ": elements [",
                    begin, ", ", end, ") of tensor ", entry.name, ", which has ", entry.numel());
  if (as != entry.dtype) {
    if (!is_float(as) || !is_float(entry.dtype)) {
      refuse(path(), entry,
             " is " + std::string(entry.dtype_name) + ": cannot be read as " + c10::toString(as));
    }
    return impl_->read_converted(entry, begin, end, as, out);
  }
  const size_t item_bytes = c10::elementSize(as);
  impl_->read_bytes(entry.begin_byte + static_cast<uint64_t>(begin) * item_bytes, out,
                    static_cast<size_t>(end - begin) * item_bytes);
  if (as == at::ScalarType::Bool) {
    check_bools(path(), entry, static_cast<const uint8_t*>(out), end - begin);
  }
}

void SafetensorsFile::prefetch(const SafetensorsEntry& entry, int64_t begin, int64_t end) const {
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  const int64_t first = std::min(std::max(begin, int64_t{0}), entry.numel()) * item_bytes;
  const int64_t last = std::min(end, entry.numel()) * item_bytes;
  if (first < last) {
    const auto offset = static_cast<int64_t>(impl_->data_begin_bytes + entry.begin_byte) + first;
    static_cast<void>(
        ::posix_fadvise(impl_->descriptor.get(), offset, last - first, POSIX_FADV_WILLNEED));
  }
}

at::Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  check_dtype(path(), entry);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype).device(at::kCPU));
  read_elements(entry, 0, entry.numel(), entry.dtype, tensor.mutable_data_ptr());
  return tensor;
}

}  // namespace sherd
