// Ranks of several hosts: those of one host share what is gathered, hosts exchange over process
// groups (docs/design/communicators.md).

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicators.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

/// A host holds a gathered segment once. Its ranks' own shards lie there all the time, and each
/// rank receives the shards of its counterparts, the ranks at its place on other hosts. The pages
/// of received shards go back to the system when all ranks of the host have released them.
/// Gradients are exchanged as over process groups: sums within hosts first would have other bits.
class HostsCommunicator final : public C10dCommunicator {
 public:
  /// Hosts have the same number of ranks, which are consecutive in the group.
  HostsCommunicator(ProcessGroups groups, HostMemory host)
      : C10dCommunicator(std::move(groups)), host_(std::move(host)) {
    for (int member = host_.group().rank(); member < world_size(); member += host_.group().size()) {
      if (member != rank()) {
        counterparts_.push_back(member);
      }
    }
  }
  /// Waits until its shards are sent: the others would lose them if this rank ended at once.
  ~HostsCommunicator() override {
    for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
      try {
        // After an exchange or a gather that failed here, counterparts may wait in the same way.
        if (!has_failed() && !gathers(segment).is_in_flight) {
          finish_sends(segment);
        }
      } catch (const Error&) {
        return;  // the receivers are gone
      }
    }
  }

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

  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override {
    segment_gathers_.resize(segments().size());
    // Among the ranks of all hosts: a host alone would leave the others waiting.
    auto memory = host_.allocate(segments(), groups().notes.group, rank(), ledger(),
                                 [this](auto mine, auto all) { gather_numbers(mine, all); });
    memory->reduce = BufferPool(allocate_on(device(), MemoryKind::ReduceBuffer, ledger()));
    return memory;
  }
  void* start_gather(Segment segment, void* /*slot*/, const GatherEvents& /*after*/) override {
    Gathers& mine = gathers(segment);
    if (mine.is_in_flight) {
      give_up(segment);
    }
    finish_sends(segment);
    mine.keeps_pages = false;  // they are about to be used again
    give_back_pages();
    mine.is_in_flight = true;
    mine.has_posted_receives = false;
    awaited_.push_back(segment);
    mine.received.reset();
    mine.received =
        enter(segment_bytes(spec(segment), hosts() - 1), MemoryKind::Gathered, ledger());
    post_sends(segment);
    // If others of the host still read the last gather, the receives are posted later.
    if (host_.all_reached(segment, &SegmentLine::released, host_.versions(segment).read)) {
      post_receives(segment);
    }
    return host_.shard(segment, 0);
  }
  void finish_gather(Segment segment) override {
    Gathers& mine = gathers(segment);
    receive_until(segment);
    host_.await_published(segment);
    host_.wait_for_all(segment, &SegmentLine::arrived, mine.arrived, "all-gather");
    ++host_.versions(segment).read;
    mine.is_in_flight = false;
  }
  void finish_reading(Segment segment) override {
    Gathers& mine = gathers(segment);
    host_.release(segment);
    mine.received.reset();
    mine.keeps_pages = true;
    give_back_pages();
  }
  void await_readers(Segment segment) override {
    finish_sends(segment);
    host_.await_readers(segment);
  }
  void show_published(Segment segment) override { host_.publish(segment); }
  void forget_exchanges() override {
    for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
      if (!gathers(segment).is_in_flight) {
        continue;
      }
      if (has_failed()) {
        return cancel("a gather between hosts has failed");  // no rank waits for it
      }
      give_up(segment);
    }
  }
  void interrupt(const std::string& why) override {
    C10dCommunicator::interrupt(why);
    host_.group().cancel(why);
  }

  [[nodiscard]] int hosts() const { return world_size() / host_.group().size(); }
  [[nodiscard]] Gathers& gathers(Segment segment) {
    return segment_gathers_[static_cast<size_t>(segment)];
  }
  void post_sends(Segment segment) {
    Messages& mine = gathers(segment).messages;
    attempt(described(Collective::Operation::Gather, segment), [&] {
      mine = introduce(segment, counterparts_);
      for (const int member : counterparts_) {
        mine.sends.push_back(send_to(*groups().gather, host_.shard(segment, rank()),
                                     segment_bytes(spec(segment), 1), member,
                                     tag_of(mine, segment)));
      }
    });
  }
  void post_receives(Segment segment) {
    Messages& mine = gathers(segment).messages;
    const int64_t bytes = segment_bytes(spec(segment), 1);
    for (const int member : counterparts_) {
      host_.data().take_pages(host_.shard(segment, member), bytes);
    }
    attempt(described(Collective::Operation::Gather, segment), [&] {
      for (const int member : counterparts_) {
        mine.receives.push_back(receive_from(*groups().gather, host_.shard(segment, member), bytes,
                                             member, tag_of(mine, segment)));
      }
    });
    gathers(segment).has_posted_receives = true;
  }
  void finish_sends(Segment segment) {
    std::vector<Work>& sends = gathers(segment).messages.sends;
    if (!sends.empty()) {
      attempt(described(Collective::Operation::Gather, segment), [&] { await_messages(sends); });
    }
  }
  // Receives in the order in which gathers were started. Waits for nothing that another rank of the
  // host does later, which may wait for any of these gathers.
  void receive_until(Segment segment) {
    while (std::find(awaited_.begin(), awaited_.end(), segment) != awaited_.end()) {
      const Segment oldest = awaited_.front();
      Gathers& mine = gathers(oldest);
      if (!mine.has_posted_receives) {
        host_.wait_for_all(oldest, &SegmentLine::released, host_.versions(oldest).read,
                           "all-gather");
        post_receives(oldest);
      }
      finish_receives(mine.messages, described(Collective::Operation::Gather, oldest));
      host_.line(oldest).arrived.raise_to(++mine.arrived);
      awaited_.pop_front();
    }
  }
  // Receives what others of the host need, and reads nothing itself.
  void give_up(Segment segment) {
    receive_until(segment);
    ++host_.versions(segment).read;
    gathers(segment).is_in_flight = false;
    finish_reading(segment);
  }
  // Returns the pages that this rank received itself: no other rank writes to them.
  void give_back_pages() {
    for (Segment segment = 0; segment < static_cast<Segment>(segment_gathers_.size()); ++segment) {
      Gathers& mine = gathers(segment);
      if (mine.keeps_pages &&
          host_.all_reached(segment, &SegmentLine::released, host_.versions(segment).released)) {
        mine.keeps_pages = false;
        for (const int member : counterparts_) {
          host_.data().give_back_pages(host_.shard(segment, member),
                                       segment_bytes(spec(segment), 1));
        }
      }
    }
  }

  HostMemory host_;
  std::vector<int> counterparts_;  ///< the ranks at this rank's place on the other hosts
  std::vector<Gathers> segment_gathers_;
  std::deque<Segment> awaited_;  ///< started and not received, the oldest first
};

}  // namespace

std::unique_ptr<Communicator> make_hosts_communicator(ProcessGroups groups, HostMemory host) {
  return std::make_unique<HostsCommunicator>(std::move(groups), std::move(host));
}

}  // namespace sherd::detail
