#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "src/safetensors/header.h"
#include "src/safetensors/posix_file.h"
#include "src/safetensors/scalar_types.h"

namespace sherd {
namespace {

// Where the next bytes of a tensor go, and where they have to end.
struct Cursor {
  uint64_t next_byte;
  uint64_t end_byte;
};

std::vector<detail::TensorRecord> lay_out(const std::string& path,
                                          const std::vector<SafetensorsSpec>& tensors) {
  std::vector<detail::TensorRecord> records;
  for (const SafetensorsSpec& tensor : tensors) {
    const detail::TensorDtype* dtype = detail::dtype_of(tensor.dtype);
    TORCH_CHECK_VALUE(dtype != nullptr, path, ": tensor ", tensor.name,
                      ": safetensors has no dtype ", c10::toString(tensor.dtype),
                      ", or Sherd does not write it");
    TORCH_CHECK_VALUE(tensor.name != "__metadata__", path,
                      ": no tensor may be called __metadata__");
    records.push_back({tensor.name, dtype, tensor.shape, 0, 0});
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.dtype->bits > b.dtype->bits; });
  uint64_t end = 0;
  for (detail::TensorRecord& record : records) {
    const auto bits = detail::tensor_bits(*record.dtype, record.shape);
    record.begin_byte = end;
    TORCH_CHECK_VALUE(bits && !__builtin_add_overflow(end, *bits / 8, &end) && end <= INT64_MAX,
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
    TORCH_CHECK_VALUE(false, error.what());
  }
  return header;
}

detail::FileDescriptor create(const std::string& path, const std::string& temporary_path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::CannotWrite, path + ": cannot be created: " + why);
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    refuse(detail::errno_text(EISDIR));
  }
  // What an earlier process of this id left behind is removed, not followed: it may be a link.
  if (::unlink(temporary_path.c_str()) != 0 && errno != ENOENT) {
    refuse(detail::errno_text(errno));
  }
  detail::FileDescriptor descriptor(
      ::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) {
    refuse(detail::errno_text(errno));
  }
  return descriptor;
}

// Takes the disk space at once, so that a full disk is told before anything has been computed for
// it.
void reserve(const std::string& path, int fd, uint64_t bytes) {
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      return;  // this file system cannot; writing tells
    }
    if (errno == EINTR) {
      continue;
    }
    const int error = errno;
    struct statvfs disk = {};
    const bool known = ::fstatvfs(fd, &disk) == 0;
    throw Error(
        ExitCode::CannotWrite,
        path + ": cannot be created: needs " + std::to_string(bytes) + " bytes" +
            (known ? ", " + std::to_string(uint64_t{disk.f_bavail} * disk.f_frsize) + " are free"
                   : "") +
            ": " + detail::errno_text(error));
  }
}

void sync(int fd, const std::string& path) {
  if (::fsync(fd) != 0) {
    throw Error(ExitCode::StorageIo, path + ": fsync failed: " + detail::errno_text(errno));
  }
}

}  // namespace

struct SafetensorsWriter::Impl {
  std::string path;
  std::string temporary_path;
  detail::FileDescriptor descriptor;
  uint64_t file_bytes = 0;
  std::map<std::string, Cursor, std::less<>> cursors;

  Impl(const std::string& file_path, const std::vector<SafetensorsSpec>& tensors,
       const std::map<std::string, std::string>& metadata)
      : path(file_path), temporary_path(path + ".tmp-" + std::to_string(::getpid())) {
    const std::vector<detail::TensorRecord> records = lay_out(path, tensors);
    const std::string header = make_header(path, records, metadata);
    for (const detail::TensorRecord& record : records) {
      cursors.emplace(record.name,
                      Cursor{header.size() + record.begin_byte, header.size() + record.end_byte});
    }
    file_bytes = header.size() + (records.empty() ? 0 : records.back().end_byte);
    descriptor = create(path, temporary_path);
    try {
      reserve(path, descriptor.get(), file_bytes);
      detail::write_exactly(descriptor.get(), temporary_path, 0, header.data(), header.size());
    } catch (...) {
      remove_temporary();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { remove_temporary(); }

  // Nothing is left to remove once finish() has given the file its name.
  void remove_temporary() {
    if (!temporary_path.empty()) {
      ::unlink(temporary_path.c_str());
    }
  }

  void write(std::string_view name, const void* data, uint64_t bytes) {
    const auto found = cursors.find(name);
    TORCH_CHECK_VALUE(found != cursors.end(), path, ": tensor ", name, " was not announced");
    Cursor& cursor = found->second;
    TORCH_CHECK_VALUE(bytes <= cursor.end_byte - cursor.next_byte, path, ": tensor ", name, ": ",
                      bytes, " more bytes, but only ", cursor.end_byte - cursor.next_byte,
                      " are left of it");
    detail::write_exactly(descriptor.get(), temporary_path, cursor.next_byte, data, bytes);
    cursor.next_byte += bytes;
  }

  void finish() {
    TORCH_CHECK_VALUE(!temporary_path.empty(), path, ": is finished already");
    for (const auto& [name, cursor] : cursors) {
      TORCH_CHECK_VALUE(cursor.next_byte == cursor.end_byte, path, ": tensor ", name, ": ",
                        cursor.end_byte - cursor.next_byte, " bytes have not been written");
    }
    sync(descriptor.get(), temporary_path);
    if (::close(descriptor.release()) != 0) {
      throw Error(ExitCode::StorageIo,
                  temporary_path + ": close failed: " + detail::errno_text(errno));
    }
    if (std::rename(temporary_path.c_str(), path.c_str()) != 0) {
      throw Error(ExitCode::StorageIo, temporary_path + ": cannot be renamed to " + path + ": " +
                                           detail::errno_text(errno));
    }
    temporary_path.clear();
    sync_folder();
  }

  // Without this, the new name may be lost with the power.
  void sync_folder() const {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    const detail::FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() < 0) {
      throw Error(ExitCode::StorageIo,
                  folder + ": cannot be opened for fsync: " + detail::errno_text(errno));
    }
    sync(opened.get(), folder);
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
void SafetensorsWriter::finish() {
  impl_->finish();
}
uint64_t SafetensorsWriter::file_bytes() const {
  return impl_->file_bytes;
}

}  // namespace sherd
