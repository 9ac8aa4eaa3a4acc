#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include <c10/core/ScalarType.h>

#include "files/output.h"
#include "safetensors/check_use.h"
#include "safetensors/header.h"
#include "safetensors/scalar_types.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace sherd {
namespace {

// Where a tensor lies in the file, and how much of it has been written.
struct Place {
  Place(uint64_t begin, uint64_t end) : begin_byte(begin), end_byte(end) {}
  [[nodiscard]] uint64_t bytes() const { return end_byte - begin_byte; }
  uint64_t begin_byte;
  uint64_t end_byte;
  std::atomic<uint64_t> written{0};
};

std::vector<detail::TensorRecord> lay_out(const std::string& path,
                                          const std::vector<SafetensorsSpec>& tensors) {
  std::vector<detail::TensorRecord> records;
  for (const SafetensorsSpec& tensor : tensors) {
    const detail::TensorDtype* dtype = detail::dtype_of(tensor.dtype);
    detail::check_use(dtype != nullptr, path, ": tensor ", tensor.name,
                      ": safetensors has no dtype ", c10::toString(tensor.dtype),
                      ", or Sherd does not write it");
    detail::check_use(tensor.name != "__metadata__", path,
                      ": no tensor may be called __metadata__");
    records.push_back({tensor.name, dtype, tensor.shape, 0, 0});
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.dtype->bits > b.dtype->bits; });
  uint64_t end = 0;
  for (detail::TensorRecord& record : records) {
    const auto bits = detail::tensor_bits(*record.dtype, record.shape);
    record.begin_byte = end;
    detail::check_use(bits && !__builtin_add_overflow(end, *bits / 8, &end) && end <= INT64_MAX,
                      path, ": tensor ", record.name, ": shape ", detail::shape_text(record.shape),
                      " is too large or negative");
    record.end_byte = end;
  }
  return records;
}

// What this library would refuse to read, it does not write.
std::string make_header(const std::string& path, const std::vector<detail::TensorRecord>& records,
                        const std::map<std::string, std::string>& metadata) {
  std::string header;
  try {
    header = detail::header_bytes(records, metadata);
    const uint64_t data_bytes = records.empty() ? 0 : records.back().end_byte;
    detail::parse_header(path, header.size() + data_bytes,
                         [&](uint64_t offset, void* out, size_t bytes) {
                           std::memcpy(out, header.data() + offset, bytes);
                         });
  } catch (const Error& error) {
    throw Error(ExitCode::Usage, error.what());
  }
  return header;
}

}  // namespace

struct SafetensorsWriter::Impl {
  std::string path;
  std::unique_ptr<files::NewFile> file;
  uint64_t file_bytes = 0;
  std::map<std::string, Place, std::less<>> places;

  Impl(const std::string& file_path, const std::vector<SafetensorsSpec>& tensors,
       const std::map<std::string, std::string>& metadata)
      : path(file_path) {
    const std::vector<detail::TensorRecord> records = lay_out(path, tensors);
    const std::string header = make_header(path, records, metadata);
    for (const detail::TensorRecord& record : records) {
      places.try_emplace(record.name, header.size() + record.begin_byte,
                         header.size() + record.end_byte);
    }
    file_bytes = header.size() + (records.empty() ? 0 : records.back().end_byte);
    file = std::make_unique<files::NewFile>(path);
    file->reserve(file_bytes);  // a full disk is told before anything has been computed for it
    file->write(0, header.data(), header.size());
  }

  Place& place_of(std::string_view name) {
    const auto found = places.find(name);
    detail::check_use(found != places.end(), path, ": tensor ", name, " was not announced");
    return found->second;
  }

  void write(std::string_view name, const void* data, uint64_t bytes) {
    Place& place = place_of(name);
    const uint64_t left = place.bytes() - place.written;
    detail::check_use(bytes <= left, path, ": tensor ", name, ": ", bytes, " more bytes, but only ",
                      left, " are left of it");
    file->write(place.begin_byte + place.written, data, bytes);
    place.written += bytes;
  }

  void write_at(std::string_view name, uint64_t first, const void* data, uint64_t bytes) {
    Place& place = place_of(name);
    detail::check_use(first <= place.bytes() && bytes <= place.bytes() - first, path, ": tensor ",
                      name, ": ", bytes, " bytes from byte ", first, " on, but it has only ",
                      place.bytes());
    file->write(place.begin_byte + first, data, bytes);
    file->begin_writeback(place.begin_byte + first, bytes);
    place.written += bytes;
  }

  void finish() {
    detail::check_use(!file->committed(), path, ": is already finished");
    for (const auto& [name, place] : places) {
      detail::check_use(place.written == place.bytes(), path, ": tensor ", name, ": ",
                        place.bytes() - place.written, " bytes have not been written");
    }
    file->commit();
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<SafetensorsSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : impl_(std::make_unique<Impl>(path, tensors, metadata)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::string_view name, const void* data, uint64_t bytes) {
  impl_->write(name, data, bytes);
}
void SafetensorsWriter::write_at(std::string_view name, uint64_t first_byte, const void* data,
                                 uint64_t bytes) {
  impl_->write_at(name, first_byte, data, bytes);
}
void SafetensorsWriter::sync() {
  impl_->file->sync();
}
void SafetensorsWriter::finish() {
  impl_->finish();
}
uint64_t SafetensorsWriter::file_bytes() const {
  return impl_->file_bytes;
}

}  // namespace sherd
