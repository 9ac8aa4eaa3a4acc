#include <algorithm>
#include <cerrno>
#include <deque>
#include <list>
#include <map>
#include <utility>

#include <liburing.h>

#include "files/transfers.h"

namespace sherd::files {

namespace {

class RingTransfers final : public Transfers {
 public:
  RingTransfers(io_uring ring, int descriptor, std::string name)
      : ring_(ring), descriptor_(descriptor), name_(std::move(name)) {}
  RingTransfers(const RingTransfers&) = delete;
  RingTransfers& operator=(const RingTransfers&) = delete;
  ~RingTransfers() override {
    waiting_.clear();
    while (!under_way_.empty() && broken_ == 0) {
      reap(/*waits=*/true);
    }
    io_uring_queue_exit(&ring_);
  }

  Ticket start(Direction direction, void* data, std::int64_t bytes, std::int64_t offset) override {
    const Ticket ticket = ++last_;
    TransferProgress& progress = progress_[ticket];
    progress.direction = direction;
    progress.parts_left =
        cut({ticket, direction, static_cast<char*>(data), bytes, offset}, kPartBytes, waiting_);
    advance(/*waits=*/false);  // a fault of the ring is told by wait()
    return ticket;
  }

  void wait(Ticket ticket) override {
    while (progress_.at(ticket).parts_left > 0 && broken_ == 0) {
      advance(/*waits=*/true);
    }
    if (broken_ != 0) {
      transfer_failed(name_, progress_.extract(ticket).mapped().direction, broken_);
    }
    const TransferProgress progress = progress_.extract(ticket).mapped();
    if (progress.failed) {
      transfer_failed(name_, progress.direction, progress.error);
    }
  }

  [[nodiscard]] const char* name() const override { return "io_uring"; }

  static constexpr unsigned kDepth = 32;  ///< parts that the system works at while others compute

 private:
  static constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;

  void advance(bool waits) {
    reap(/*waits=*/false);
    submit();
    if (waits && !under_way_.empty() && broken_ == 0) {
      reap(/*waits=*/true);
    }
  }

  void submit() {
    while (!waiting_.empty() && under_way_.size() < kDepth && broken_ == 0) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      under_way_.splice(under_way_.end(), waiting_, waiting_.begin());
      TransferPart& part = under_way_.back();
      const auto size = static_cast<unsigned>(part.bytes);
      const auto offset = static_cast<std::uint64_t>(part.offset);
      part.direction == Direction::Read
          ? io_uring_prep_read(entry, descriptor_, part.data, size, offset)
          : io_uring_prep_write(entry, descriptor_, part.data, size, offset);
      io_uring_sqe_set_data(entry, &part);
    }
    while (io_uring_sq_ready(&ring_) > 0 && broken_ == 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        broken_ = -submitted;
      }
    }
  }

  // Takes what has ended; where it waits, at least one part.
  void reap(bool waits) {
    io_uring_cqe* entry = nullptr;
    if (waits) {
      const int error = io_uring_wait_cqe(&ring_, &entry);
      broken_ = error == 0 || error == -EINTR || error == -EAGAIN ? broken_ : -error;
    }
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      auto* const part = static_cast<TransferPart*>(io_uring_cqe_get_data(entry));
      const int done = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      take(*part, done);
    }
  }

  void take(TransferPart& part, int done) {
    const auto place = std::find_if(under_way_.begin(), under_way_.end(),
                                    [&](const TransferPart& other) { return &other == &part; });
    if (done > 0) {
      part.advance(done);
    }
    const bool goes_on = (done > 0 && part.bytes > 0) || done == -EINTR || done == -EAGAIN;
    if (goes_on) {
      waiting_.splice(waiting_.begin(), under_way_, place);
      return;
    }
    TransferProgress& progress = progress_.at(part.ticket);
    if (done <= 0) {
      progress.fail(-done);
    }
    --progress.parts_left;
    under_way_.erase(place);
  }

  io_uring ring_;
  int descriptor_;
  std::string name_;
  int broken_ = 0;  ///< errno of a call that no transfer can follow
  std::list<TransferPart> waiting_;
  std::list<TransferPart> under_way_;  ///< the system has their addresses
  std::map<Ticket, TransferProgress> progress_;
  Ticket last_ = 0;
};

}  // namespace

namespace {

// Before Linux 5.6 it has neither.
bool can_read_and_write(io_uring& ring) {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  const bool can = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                   io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  if (probe != nullptr) {
    io_uring_free_probe(probe);
  }
  return can;
}

}  // namespace

std::unique_ptr<Transfers> transfers_by_io_uring(int descriptor, std::string name) {
  io_uring ring = {};
  if (io_uring_queue_init(RingTransfers::kDepth, &ring, 0) != 0) {
    return nullptr;  // by seccomp, or kernel.io_uring_disabled
  }
  if (!can_read_and_write(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<RingTransfers>(ring, descriptor, std::move(name));
}

}  // namespace sherd::files
