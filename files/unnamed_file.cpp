#include "files/unnamed_file.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fcntl.h>

#include "files/system_text.h"
#include "sherd/error.h"

namespace sherd::files {

namespace {

// Where the file system has no files without names.
int make_and_unlink(const std::string& folder, int flags) {
  std::string path = folder + "/sherd-offload-XXXXXX";
  const int descriptor = ::mkostemp(path.data(), flags | O_CLOEXEC);
  if (descriptor >= 0) {
    ::unlink(path.c_str());
  }
  return descriptor;
}

int open_nameless(const std::string& folder, int flags) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  const bool knows_none = descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR);
  return knows_none ? make_and_unlink(folder, flags) : descriptor;
}

Error cannot_be_made(const std::string& what, const std::string& why) {
  return {ExitCode::CannotWrite,
          what + ": " + why +
              ". Name one on a local disk that may be written to (memory.offload, "
              "ShardOptions::offload)."};
}

}  // namespace

UnnamedFile::UnnamedFile(const std::string& folder) : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw cannot_be_made("the folder for offloading, '" + folder + "', cannot be created",
                         error.message());
  }
  file_ = FileDescriptor(open_nameless(folder, O_DIRECT));
  if (file_.get() < 0 && errno == EINVAL) {
    is_direct_ = false;
    file_ = FileDescriptor(open_nameless(folder, 0));
  }
  if (file_.get() < 0) {
    throw cannot_be_made("a file for offloading cannot be created in '" + folder + "'",
                         errno_text(errno));
  }
  const std::string name = "the file for offloading in '" + folder + "'";
  transfers_ = transfers_by_io_uring(file_.get(), name);
  if (transfers_ == nullptr) {
    transfers_ = transfers_by_threads(file_.get(), name);
  }
}

std::int64_t UnnamedFile::allocate(std::int64_t bytes) {
  if (bytes == 0) {
    return bytes_;
  }
  std::error_code ignored;
  const auto free = std::filesystem::space(folder_, ignored).available;
  int error = 0;
  do {
    error = ::fallocate(file_.get(), 0, bytes_, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP && static_cast<std::uintmax_t>(bytes) < free) {
    error = ::ftruncate(file_.get(), bytes_ + bytes) == 0 ? 0 : errno;
  }
  if (error != 0) {
    throw Error(ExitCode::CannotWrite,
                "no room for offloading to '" + folder_ + "': after " + std::to_string(bytes_) +
                    " bytes " + std::to_string(bytes) + " more are needed, and " +
                    std::to_string(free) + " are free (" + errno_text(error) +
                    "). Make room, or choose a folder on another disk.");
  }
  const std::int64_t begin = bytes_;
  bytes_ += bytes;
  return begin;
}

void UnnamedFile::release(std::int64_t begin, std::int64_t bytes) {
  if (bytes > 0) {  // where the file system cannot, the place goes with the file
    ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes);
  }
}

std::string UnnamedFile::description() const {
  return std::string(transfers_->name()) + (is_direct_ ? ", direct" : ", through the page cache");
}

}  // namespace sherd::files
