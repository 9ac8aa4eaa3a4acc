#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

#include "files/quiet_thread.h"
#include "files/system_text.h"
#include "files/transfers.h"
#include "sherd/error.h"

namespace sherd::files {

namespace {

class ThreadTransfers final : public Transfers {
 public:
  ThreadTransfers(int descriptor, std::string name)
      : descriptor_(descriptor), name_(std::move(name)) {
    for (std::thread& thread : threads_) {
      thread = start_quiet_thread([this] { work(); });
    }
  }
  ThreadTransfers(const ThreadTransfers&) = delete;
  ThreadTransfers& operator=(const ThreadTransfers&) = delete;
  ~ThreadTransfers() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  Ticket start(Direction direction, void* data, std::int64_t bytes, std::int64_t offset) override {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = ++last_;
    TransferProgress& progress = progress_[ticket];
    progress.direction = direction;
    progress.parts_left =
        cut({ticket, direction, static_cast<char*>(data), bytes, offset}, kPartBytes, waiting_);
    changed_.notify_all();
    return ticket;
  }

  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return progress_.at(ticket).parts_left == 0; });
    const TransferProgress progress = progress_.extract(ticket).mapped();
    if (progress.failed) {
      transfer_failed(name_, progress.direction, progress.error);
    }
  }

  [[nodiscard]] const char* name() const override { return "threads"; }

 private:
  static constexpr std::int64_t kPartBytes = std::int64_t{4} << 20;
  static constexpr int kThreads = 2;  // one may read while the other writes

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        return;
      }
      TransferPart part = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto [failed, error] = carry_out(part);
      lock.lock();
      TransferProgress& progress = progress_.at(part.ticket);
      if (failed) {
        progress.fail(error);
      }
      --progress.parts_left;
      changed_.notify_all();
    }
  }

  // Whether it failed, and how.
  [[nodiscard]] std::pair<bool, int> carry_out(TransferPart part) const {
    while (part.bytes > 0) {
      const auto size = static_cast<std::size_t>(part.bytes);
      const ssize_t done = part.direction == Direction::Read
                               ? ::pread(descriptor_, part.data, size, part.offset)
                               : ::pwrite(descriptor_, part.data, size, part.offset);
      if (done < 0 && errno == EINTR) {
        continue;
      }
      if (done <= 0) {
        return {true, done == 0 ? 0 : errno};
      }
      part.advance(done);
    }
    return {false, 0};
  }

  int descriptor_;
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TransferPart> waiting_;
  std::map<Ticket, TransferProgress> progress_;
  Ticket last_ = 0;
  bool ends_ = false;
  std::array<std::thread, kThreads> threads_;
};

}  // namespace

std::unique_ptr<Transfers> transfers_by_threads(int descriptor, std::string name) {
  return std::make_unique<ThreadTransfers>(descriptor, std::move(name));
}

void transfer_failed(const std::string& name, Transfers::Direction direction, int error) {
  const bool reads = direction == Transfers::Direction::Read;
  throw Error(ExitCode::StorageIo,
              std::string(reads ? "reading from " : "writing to ") + name +
                  " failed: " + (error == 0 ? "it ends too early" : errno_text(error)) +
                  ". What was stored there is lost: resume from the last checkpoint.");
}

}  // namespace sherd::files
