#include "files/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/file_descriptor.h"
#include "sherd/error.h"

namespace sherd::files {

/// What the signal handler knows of a mapped file. Ranges are used again and never freed: a handler
/// may be walking the list.
struct MappedRange {
  std::atomic<std::uintptr_t> begin{0};  ///< 0: free
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> is_torn{false};
  std::string path;  ///< under the mutex; not of the handler
  MappedRange* next = nullptr;
};

namespace {

// A signal handler has no other way to its data.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<MappedRange*> first_range{nullptr};
std::atomic<bool> any_is_torn{false};
std::uintptr_t page_bytes = 0;
struct sigaction action_before = {};
std::mutex ranges_mutex;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// Maps zeros in place of the page at `address` and those after it.
bool maps_zeros(MappedRange& range, std::uintptr_t address) {
  const std::uintptr_t page = address & ~(page_bytes - 1);
  const std::uintptr_t end = range.end.load();
  range.is_torn.store(true);
  any_is_torn.store(true);
  return ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void call_handler_before(int signal, siginfo_t* info, void* context) {
  if ((action_before.sa_flags & SA_SIGINFO) != 0) {
    action_before.sa_sigaction(signal, info, context);
  } else if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN) {
    action_before.sa_handler(signal);
  } else {
    ::sigaction(signal, &action_before, nullptr);  // the access comes again, and ends the process
  }
}

// Calls nothing but what a signal handler may call.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool is_of_file = info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR;
  for (MappedRange* range = is_of_file ? first_range.load() : nullptr; range != nullptr;
       range = range->next) {
    if (range->begin.load() <= address && address < range->end.load() &&
        maps_zeros(*range, address)) {
      errno = error;
      return;
    }
  }
  call_handler_before(signal, info, context);
}

void watch_for_bus_errors() {
  static const bool is_watching = [] {
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &action_before) == 0;
  }();
  static_cast<void>(is_watching);
}

MappedRange* range_of(std::string_view bytes, const std::string& path) {
  watch_for_bus_errors();
  const std::lock_guard lock(ranges_mutex);
  MappedRange* range = first_range.load();
  while (range != nullptr && range->begin.load() != 0) {
    range = range->next;
  }
  if (range == nullptr) {
    range = new MappedRange;
    range->next = first_range.load();
    first_range.store(range);
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  range->path = path;
  range->is_torn.store(false);
  range->end.store((begin + bytes.size() + page_bytes - 1) & ~(page_bytes - 1));
  range->begin.store(begin);
  return range;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe does not wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status = {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size == 0) {
    return;
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data != MAP_FAILED) {
    bytes_ = {static_cast<const char*>(data), size};
    range_ = range_of(bytes_, path);
  }
}

MappedFile::~MappedFile() {
  if (range_ == nullptr) {
    return;
  }
  {
    const std::lock_guard lock(ranges_mutex);
    range_->is_torn.store(false);
    range_->end.store(0);
    range_->begin.store(0);
  }
  ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void require_mapped_files() {
  if (!any_is_torn.load()) {
    return;
  }
  const std::lock_guard lock(ranges_mutex);
  for (const MappedRange* range = first_range.load(); range != nullptr; range = range->next) {
    if (range->is_torn.load()) {
      throw Error(
          ExitCode::StorageIo,
          range->path + ": became shorter while it was read, or its disk failed. Was it " +
              "truncated? Start the same command again: a damaged cache file is rewritten.");
    }
  }
}

}  // namespace sherd::files
