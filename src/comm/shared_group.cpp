#include "comm/shared_group.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <optional>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMemoryPageBytes = 4096;
// Since Linux 6.3, 5.14, 5.14 and 6.1; older C libraries do not name them.
constexpr unsigned kNoExecute = 0x0008U;
constexpr int kPopulateForReading = 22;
constexpr int kPopulateForWriting = 23;
constexpr int kCollapse = 25;

[[noreturn]] void memory_unavailable(const std::string& what,
                                     ExitCode code = ExitCode::Unavailable) {
  throw Error(code, what + ": " + std::strerror(errno) +
                        ". Raise the limits on memory, addresses and file sizes (ulimit -v, "
                        "ulimit -f, the container's), or exchange over process groups: "
                        "WorldOptions::transport = Transport::ProcessGroups.");
}

std::string mebibytes(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

// Longer than a wake takes, so that ranks in step do not sleep.
constexpr std::chrono::microseconds kSpin{30};
constexpr int kPausesBetweenLooksAtTheClock = 32;
// The delay with which a rank that has ended is noticed.
constexpr std::chrono::milliseconds kSleep{100};

// Not FUTEX_PRIVATE_FLAG: the sleepers are other processes.
void futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* limit) {
  syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

// Lets the core's other thread run.
void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

SharedRegion SharedRegion::make() {
  int fd = memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecute);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0) {
    memory_unavailable("cannot create a memory file (memfd)");
  }
  return SharedRegion(launch::FileDescriptor(fd));
}

void SharedRegion::set_size(int64_t bytes) {
  // Sealed: if the file shrank, a signal would end the processes that read it.
  if (ftruncate(file_.get(), bytes) != 0 ||
      fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    memory_unavailable("cannot create a memory file of " + mebibytes(bytes));
  }
}

void SharedRegion::map(int64_t bytes) {
  struct stat found {};
  if (fstat(file_.get(), &found) != 0 || found.st_size != bytes) {
    throw Error(ExitCode::RanksDisagree, "the ranks share " + std::to_string(found.st_size) +
                                             " bytes, and this one expects " +
                                             std::to_string(bytes) + ".");
  }
  Mapping mapping = map_memory(bytes, PROT_NONE, MAP_NORESERVE);  // replaced by the file's pages
  if (mapping == nullptr) {
    memory_unavailable("cannot reserve " + mebibytes(bytes) + " of addresses");
  }
  if (mmap(mapping.get(), static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_FIXED, file_.get(), 0) == MAP_FAILED) {
    memory_unavailable("cannot map " + mebibytes(bytes) + " of shared memory");
  }
  mapping_ = std::move(mapping);
  file_.close();
  madvise(data(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

// Makes huge pages of a large range and its neighbours on the same pages. Memory files get none by
// themselves (transparent_hugepage/shmem_enabled is "never" nearly everywhere). A small page of
// each huge one must exist. If the kernel cannot, small pages work too, only slower.
void SharedRegion::collapse(int64_t first, int64_t end) const {
  first = first / kHugePage * kHugePage;
  const int64_t all = mapping_.get_deleter().bytes;
  end = std::min((end + kHugePage - 1) / kHugePage, all / kHugePage) * kHugePage;
  for (int64_t place = first; place < end; place += kHugePage) {
    if (madvise(data() + place, kMemoryPageBytes, kPopulateForReading) != 0) {
      return;
    }
  }
  if (end > first) {
    madvise(data() + first, static_cast<size_t>(end - first), kCollapse);
  }
}

void SharedRegion::populate(const void* begin, int64_t bytes) const {
  if (bytes >= kHugePage) {
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
    memory_unavailable("cannot allocate " + mebibytes(bytes) + " of shared memory",
                       ExitCode::OutOfMemory);
  }
}

void SharedCounter::raise_to(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void SharedCounter::sleep_until_raised(uint32_t value, std::chrono::nanoseconds limit) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (!reaches(seen, value)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec time{seconds.count(), (limit - seconds).count()};
    futex(value_, FUTEX_WAIT, seen, &time);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

bool SharedGroup::all_reached(CounterOf counter_of, uint32_t value) const {
  for (int member = 0; member < size(); ++member) {
    if (!counter_of(member).has_reached(value)) {
      return false;
    }
  }
  return true;
}

bool SharedGroup::spin_until_reached(const SharedCounter& counter, uint32_t value) const {
  if (!spins_) {
    return false;
  }
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenLooksAtTheClock; ++i) {
      if (counter.has_reached(value)) {
        return true;
      }
      pause_briefly();
    }
  } while (Clock::now() < end);
  return false;
}

void SharedGroup::wait_for_all(CounterOf counter_of, uint32_t value, const Awaited& awaited) const {
  std::optional<Patience> patience;  // from the first sleep on
  std::optional<CurrentWait::Entry> waiting;
  for (int member = 0; member < size(); ++member) {
    SharedCounter& counter = counter_of(member);
    if (counter.has_reached(value) || spin_until_reached(counter, value)) {
      continue;
    }
    if (!patience) {
      patience.emplace(options_.notes.patience());
      waiting.emplace(*options_.notes.waits, awaited.text());
    }
    while (!counter.has_reached(value)) {
      counter.sleep_until_raised(
          value, std::min<std::chrono::nanoseconds>(kSleep, options_.notes.timeout));
      if (!counter.has_reached(value)) {
        const bool is_over = patience->is_over();
        check_members(counter_of, value, awaited, is_over ? &*patience : nullptr);
      }
    }
  }
}

void SharedGroup::check_members(CounterOf counter_of, uint32_t value, const Awaited& awaited,
                                const Patience* ended) const {
  if (cancelled_.load(std::memory_order_acquire)) {
    throw Error(ExitCode::PeerLost, awaited.text() + " was cancelled: " + why_);
  }
  std::string missing;
  std::vector<int> missing_ranks;
  bool hopeless = false;
  for (int member = 0; member < size(); ++member) {
    if (counter_of(member).has_reached(value)) {
      continue;
    }
    const bool has_left = lines_[member].departed.load(std::memory_order_acquire) != 0;
    const bool has_ended = !has_left && !options_.places[static_cast<size_t>(member)].is_alive();
    if (counter_of(member).has_reached(value)) {
      continue;  // it did so before it left
    }
    hopeless = hopeless || has_left || has_ended;
    missing_ranks.push_back(options_.ranks.rank_at(member));
    missing += (missing.empty() ? "" : ", ") + std::to_string(options_.ranks.rank_at(member)) +
               (has_left    ? " (has left)"
                : has_ended ? " (has ended)"
                            : "");
  }
  if (missing.empty()) {
    return;
  }
  const std::string what = awaited.text();
  if (hopeless) {
    options_.notes.note(what);
    throw Error(ExitCode::PeerLost,
                what + ": missing rank " + missing + ". Its own message says why.");
  }
  if (ended != nullptr) {
    const FailureNotes::Report others = options_.notes.report(what, Failure::TimedOut);
    throw Error(ExitCode::Hang,
                what + " timed out: missing rank " + missing + "." +
                    last_work_of(ended->reports(), missing_ranks) + others.store +
                    others.elsewhere +
                    " Every rank must reach this collective; look at what they did instead.");
  }
}

void SharedGroup::gather_numbers(std::span<const double> mine, std::span<double> all) {
  for (size_t first = 0; first < mine.size(); first += kValues) {
    const size_t count = std::min(mine.size() - first, kValues);
    const uint32_t round = ++rounds_;
    const auto of_round = [&](int member) -> auto& {
      return lines_[member].values[round % 2];
    };
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(first), count, of_round(rank()).begin());
    lines_[rank()].entered.raise_to(round);
    wait_for_all([&](int member) -> SharedCounter& { return lines_[member].entered; }, round,
                 {"all-reduce"});
    for (int member = 0; member < size(); ++member) {
      std::copy_n(of_round(member).begin(), count,
                  all.data() + mine.size() * static_cast<size_t>(member) + first);
    }
  }
}

}  // namespace sherd::detail
