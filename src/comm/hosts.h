#pragma once
// Ranks of several hosts: those of one host share what is gathered, hosts exchange over process
// groups (docs/design/communicators.md).

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/c10d.h"
#include "comm/shared_memory/meeting.h"
#include "comm/shared_memory/shared_buffers.h"

namespace sherd::detail {

/// One rank's counters of one segment, for the others of its host: a cache line, written by that
/// rank alone.
struct alignas(64) GatherLine {
  SharedCounter published;  ///< versions of its piece
  SharedCounter arrived;    ///< gathers whose pieces of other hosts it has received
  SharedCounter released;   ///< gathers that it does not read any more
};

/// Addresses in the region of a host, as offsets: the lines of its ranks, then each segment as it
/// lies gathered.
class HostLayout {
 public:
  HostLayout() = default;
  HostLayout(const std::vector<SegmentSpec>& segments, int world_size, int host_size);
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] int64_t line(Communicator::Segment segment, int member) const {
    return (int64_t{segment} * host_size_ + member) * static_cast<int64_t>(sizeof(GatherLine));
  }
  [[nodiscard]] int64_t pieces(Communicator::Segment segment) const {
    return pieces_[static_cast<size_t>(segment)];
  }

 private:
  int host_size_ = 1;
  int64_t bytes_ = 0;
  std::vector<int64_t> pieces_;  // by segment
};

/// A host holds a gathered segment once: its ranks' own pieces lie there all the time, and each
/// rank receives those of the ranks at its place on other hosts. So a piece crosses to another host
/// once, whatever that host's number of ranks. The pages of what was received go back to the system
/// when all ranks of the host have released it.
///
/// Gradients are exchanged as over process groups, since sums are taken in rank order: a sum within
/// a host first would have other bits.
class HostsCommunicator final : public C10dCommunicator {
 public:
  /// `host`: shared by the ranks of this host, which are as many on each, side by side.
  HostsCommunicator(ProcessGroups groups, HostMemory host)
      : C10dCommunicator(std::move(groups)),
        group_(std::move(host.group)),
        data_(std::move(host.data)) {}
  /// Waits for what it still sends: a rank that ends at once would take it from the others.
  ~HostsCommunicator() override;

  [[nodiscard]] std::string transport() const override;
  [[nodiscard]] bool gathers_in_place() const override { return true; }
  [[nodiscard]] int gathered_pieces() const override { return hosts() - 1; }

 private:
  /// This rank's own account of a segment.
  struct Account {
    uint32_t published = 0;
    uint32_t arrived = 0;
    uint32_t read = 0;  ///< gathers that were waited for
    uint32_t released = 0;
    int tag = 0;  ///< of the gather under way
    bool is_under_way = false;
    bool has_posted_receives = false;
    bool keeps_pages = false;  ///< of a gather that this rank has released
    std::vector<Work> sends = {};
    std::vector<Work> receives = {};
    std::optional<LedgerEntry> received = {};
  };

  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override;
  void finish_reading(Segment segment) override;
  void await_readers(Segment segment) override;
  void show_published(Segment segment) override;
  void forget_exchanges() override;
  void interrupt(const std::string& why) override;

  [[nodiscard]] int hosts() const { return world_size() / group_->size(); }
  [[nodiscard]] Account& account(Segment segment) {
    return accounts_[static_cast<size_t>(segment)];
  }
  [[nodiscard]] char* piece(Segment segment, int member) const;
  [[nodiscard]] at::Tensor bytes_of(Segment segment, int member) const;
  [[nodiscard]] GatherLine& line(Segment segment, int host_member) const;
  void agree_on_fault(const std::string& fault);
  [[nodiscard]] SharedGroup::CounterOf counters(Segment segment,
                                                SharedCounter GatherLine::*counter) const;
  void wait_for_host(Segment segment, SharedCounter GatherLine::*counter, uint32_t value,
                     const char* what) const;
  template <class Fn>
  void for_each_counterpart(Fn&& fn) const;
  void post_sends(Segment segment);
  void post_receives(Segment segment);
  void finish_sends(Segment segment);
  void receive_until(Segment segment);
  void give_up(Segment segment);
  void give_back_pages();

  std::unique_ptr<SharedGroup> group_;
  SharedRegion data_;
  HostLayout layout_;
  std::vector<Account> accounts_;
  std::deque<Segment> awaited_;  ///< started and not received, the oldest first
  std::vector<LedgerEntry> pieces_;
  int next_gather_tag_ = 0;
  std::atomic<bool> is_cancelled_ = false;
};

}  // namespace sherd::detail
