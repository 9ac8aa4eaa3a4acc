#pragma once
// Ranks of several hosts: those of one host share what is gathered, hosts exchange over process
// groups (docs/design/communicators.md).

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/c10d.h"
#include "comm/shared_memory.h"

namespace sherd::detail {

/// A host holds a gathered segment once. Its ranks' own shards lie there all the time, and each
/// rank receives the shards of its counterparts, the ranks at its place on other hosts. The pages
/// of received shards go back to the system when all ranks of the host have released them.
/// Gradients are exchanged as over process groups: sums within hosts first would have other bits.
class HostsCommunicator final : public C10dCommunicator {
 public:
  /// Hosts have the same number of ranks, which are consecutive in the group.
  HostsCommunicator(ProcessGroups groups, HostMemory host);
  /// Waits until its shards are sent: the others would lose them if this rank ended at once.
  ~HostsCommunicator() override;

  [[nodiscard]] std::string transport() const override {
    return "shared memory within hosts, " + C10dCommunicator::transport() + " between them";
  }
  [[nodiscard]] bool gathers_in_place() const override { return true; }
  [[nodiscard]] int gathered_pieces() const override { return hosts() - 1; }

 private:
  /// The gathers of one segment, as this rank sees them.
  struct Gathers {
    uint32_t arrived = 0;
    bool is_in_flight = false;
    bool has_posted_receives = false;
    bool keeps_pages = false;  ///< of a gather that this rank has released
    Messages messages = {};
    LedgerEntry received = {};
  };

  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override;
  void finish_reading(Segment segment) override;
  void await_readers(Segment segment) override {
    finish_sends(segment);
    host_.await_readers(segment);
  }
  void show_published(Segment segment) override { host_.publish(segment); }
  void forget_exchanges() override;
  void interrupt(const std::string& why) override {
    C10dCommunicator::interrupt(why);
    host_.group().cancel(why);
  }

  [[nodiscard]] int hosts() const { return world_size() / host_.group().size(); }
  [[nodiscard]] Gathers& gathers(Segment segment) {
    return segment_gathers_[static_cast<size_t>(segment)];
  }
  void post_sends(Segment segment);
  void post_receives(Segment segment);
  void finish_sends(Segment segment);
  void receive_until(Segment segment);
  void give_up(Segment segment);
  void give_back_pages();

  HostMemory host_;
  std::vector<int> counterparts_;  ///< the ranks at this rank's place on the other hosts
  std::vector<Gathers> segment_gathers_;
  std::deque<Segment> awaited_;  ///< started and not received, the oldest first
};

}  // namespace sherd::detail
