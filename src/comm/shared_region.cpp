#include "comm/shared_region.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kMemoryPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Since Linux 6.3, 5.14, 5.14 and 6.1; older C libraries do not name them.
constexpr unsigned kNoExecute = 0x0008U;
constexpr int kPopulateForReading = 22;
constexpr int kPopulateForWriting = 23;
constexpr int kCollapse = 25;

[[noreturn]] void unavailable(const std::string& what, ExitCode code = ExitCode::Unavailable) {
  throw Error(code, what + ": " + std::strerror(errno) +
                        ". Raise the limits on memory, addresses and file sizes (ulimit -v, "
                        "ulimit -f, the container's), or exchange over process groups: "
                        "WorldOptions::transport = Transport::ProcessGroups.");
}

std::string mebibytes(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

SharedRegion SharedRegion::make() {
  int fd = memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecute);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0) {
    unavailable("cannot create a memory file (memfd)");
  }
  return SharedRegion(launch::FileDescriptor(fd));
}

void SharedRegion::Unmap::operator()(char* data) const {
  munmap(data, static_cast<size_t>(bytes));
}

void SharedRegion::set_size(int64_t bytes) {
  // Sealed: if the file shrank, a signal would end the processes that read it.
  if (ftruncate(file_.get(), bytes) != 0 ||
      fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    unavailable("cannot create a memory file of " + mebibytes(bytes));
  }
}

void SharedRegion::map(int64_t bytes) {
  struct stat found {};
  if (fstat(file_.get(), &found) != 0 || found.st_size != bytes) {
    throw Error(ExitCode::RanksDisagree, "the ranks share " + std::to_string(found.st_size) +
                                             " bytes, and this one expects " +
                                             std::to_string(bytes) + ".");
  }
  // More addresses than needed, to find an aligned range in them; the others are unmapped.
  const int64_t reserved = bytes + kHugePageBytes;
  void* base = mmap(nullptr, static_cast<size_t>(reserved), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    unavailable("cannot reserve " + mebibytes(reserved) + " of addresses");
  }
  auto* begin = static_cast<char*>(base);
  const int64_t before =
      (kHugePageBytes - reinterpret_cast<int64_t>(begin) % kHugePageBytes) % kHugePageBytes;
  void* mapped = mmap(begin + before, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file_.get(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(begin, static_cast<size_t>(reserved));
    errno = error;
    unavailable("cannot map " + mebibytes(bytes) + " of shared memory");
  }
  const int64_t end = before + (bytes + kMemoryPageBytes - 1) / kMemoryPageBytes * kMemoryPageBytes;
  if (before > 0) {
    munmap(begin, static_cast<size_t>(before));
  }
  if (reserved > end) {
    munmap(begin + end, static_cast<size_t>(reserved - end));
  }
  data_ = {begin + before, Unmap{bytes}};
  file_.close();
  madvise(data(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

// Makes huge pages of a large range and its neighbours on the same pages. Memory files get none by
// themselves (transparent_hugepage/shmem_enabled is "never" nearly everywhere), but the kernel
// collapses ranges on request. If it cannot, small pages work too, only slower. A small page of
// each huge one must exist.
void SharedRegion::collapse(int64_t first, int64_t end) const {
  first = first / kHugePageBytes * kHugePageBytes;
  const int64_t all = data_.get_deleter().bytes;
  end =
      std::min((end + kHugePageBytes - 1) / kHugePageBytes, all / kHugePageBytes) * kHugePageBytes;
  for (int64_t place = first; place < end; place += kHugePageBytes) {
    if (madvise(data() + place, kMemoryPageBytes, kPopulateForReading) != 0) {
      return;
    }
  }
  if (end > first) {
    madvise(data() + first, static_cast<size_t>(end - first), kCollapse);
  }
}

void SharedRegion::populate(const void* begin, int64_t bytes) const {
  if (bytes >= kHugePageBytes) {
    const int64_t first = static_cast<const char*>(begin) - data();
    collapse(first, first + bytes);
  }
  take_pages(begin, bytes);
}

void SharedRegion::give_back_pages(const void* begin, int64_t bytes) const {
  const int64_t place = static_cast<const char*>(begin) - data();
  const int64_t first = (place + kMemoryPageBytes - 1) / kMemoryPageBytes * kMemoryPageBytes;
  const int64_t end = (place + bytes) / kMemoryPageBytes * kMemoryPageBytes;
  if (end > first) {
    // If the kernel refuses, the pages stay: more memory, no error.
    madvise(data() + first, static_cast<size_t>(end - first), MADV_REMOVE);
  }
}

void SharedRegion::take_pages(const void* begin, int64_t bytes) const {
  const int64_t first =
      (static_cast<const char*>(begin) - data()) / kMemoryPageBytes * kMemoryPageBytes;
  const int64_t end = static_cast<const char*>(begin) - data() + bytes;
  const bool refused = bytes > 0 && madvise(data() + first, static_cast<size_t>(end - first),
                                            kPopulateForWriting) != 0;
  if (refused && errno != EINVAL) {  // EINVAL: this kernel cannot; pages come when touched
    unavailable("cannot allocate " + mebibytes(bytes) + " of shared memory", ExitCode::OutOfMemory);
  }
}

}  // namespace sherd::detail
