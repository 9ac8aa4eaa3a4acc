#pragma once
// Memory that the ranks of one host share, and the communicator of ranks that are all on one host
// (docs/design/shared-memory.md).

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/buffers.h"
#include "comm/shared_group.h"

namespace sherd::detail {

/// One rank's counters of one segment: a cache line that this rank alone writes.
struct alignas(64) SegmentLine {
  SharedCounter published;  ///< versions of its shard
  SharedCounter arrived;    ///< between hosts: gathers whose shards it has received
  SharedCounter released;   ///< gathers whose bytes it does not read any more
};

/// The gathered segments of a group as the ranks of one host share them, and the counters that
/// order reads and writes.
class HostMemory {
 public:
  using Segment = Communicator::Segment;
  /// This rank's own count for a segment.
  struct Versions {
    uint32_t published = 0;  ///< of its shard
    uint32_t read = 0;       ///< gathers that it waited for
    uint32_t released = 0;   ///< of those, gathers that ended
  };
  /// As BufferedCommunicator::gather_numbers() of the whole group.
  using GatherNumbers = std::function<void(std::span<const double>, std::span<double>)>;

  /// `group`: the ranks of this host. `data`: a file that all of them have, without a size yet.
  HostMemory(std::unique_ptr<SharedGroup> group, SharedRegion data)
      : group_(std::move(group)), data_(std::move(data)) {}

  /// Allocates the memory of `segments`, which must outlive this, without reduce buffers.
  /// Collective over `ranks`, the whole group. Throws Error(Unavailable) on all of them alike.
  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate(
      const std::vector<SegmentSpec>& segments, const RankGroup& ranks, int rank,
      const std::shared_ptr<MemoryLedger>& ledger, const GatherNumbers& gather_numbers);
  /// Returns this rank's reduce buffers, if the whole group is on this host. Must outlive them, and
  /// stay where it is.
  [[nodiscard]] BufferPool reduce_buffers(std::shared_ptr<MemoryLedger> ledger) const;

  [[nodiscard]] SharedGroup& group() const { return *group_; }
  [[nodiscard]] const SharedRegion& data() const { return data_; }
  [[nodiscard]] Versions& versions(Segment segment) {
    return versions_[static_cast<size_t>(segment)];
  }
  /// Returns the address of a rank's shard, by its place in the whole group.
  [[nodiscard]] char* shard(Segment segment, int member) const {
    return data_.data() + offsets_[static_cast<size_t>(segment)] +
           segment_bytes(spec(segment), 1) * member;
  }
  /// Returns this rank's own line.
  [[nodiscard]] SegmentLine& line(Segment segment) const { return line(segment, group_->rank()); }
  /// True if the counter has reached the value on all ranks of this host.
  [[nodiscard]] bool all_reached(Segment segment, SharedCounter SegmentLine::*counter,
                                 uint32_t value) const {
    return group_->all_reached(
        [&](int member) -> SharedCounter& { return line(segment, member).*counter; }, value);
  }
  void wait_for_all(Segment segment, SharedCounter SegmentLine::*counter, uint32_t value,
                    const char* what) const {
    group_->wait_for_all(
        [&](int member) -> SharedCounter& { return line(segment, member).*counter; }, value,
        {what, &spec(segment).name});
  }

  /// Waits until no rank of this host reads the current version any more.
  void await_readers(Segment segment) {
    // What the others read of this version is what this rank has read: all run the same program.
    wait_for_all(segment, &SegmentLine::released, versions(segment).read, "optimizer step");
  }
  void publish(Segment segment) { line(segment).published.raise_to(++versions(segment).published); }
  /// Waits until all ranks of this host have published the version that this rank has.
  void await_published(Segment segment) {
    wait_for_all(segment, &SegmentLine::published, versions(segment).published, "all-gather");
  }
  void release(Segment segment) { line(segment).released.raise_to(++versions(segment).released); }

 private:
  struct Range {
    int64_t offset;
    int64_t bytes;
  };
  [[nodiscard]] SegmentLine& line(Segment segment, int host_member) const {
    const int64_t number = int64_t{segment} * group_->size() + host_member;
    return reinterpret_cast<SegmentLine*>(data_.data())[number];
  }
  [[nodiscard]] const SegmentSpec& spec(Segment segment) const {
    return (*segments_)[static_cast<size_t>(segment)];
  }
  void plan(int world_size);

  std::unique_ptr<SharedGroup> group_;
  SharedRegion data_;
  const std::vector<SegmentSpec>* segments_ = nullptr;
  std::vector<Versions> versions_;
  std::vector<LedgerEntry> shards_in_ledger_;
  // The plan of the region: equal on all ranks, from the segments alone. The ranks' lines of each
  // segment; the segments; if all ranks share it, each rank's reduce buffers.
  int64_t bytes_ = 0;
  std::vector<int64_t> offsets_;      ///< by segment: of rank 0's shard; the others follow
  std::vector<Range> reduce_ranges_;  ///< this rank's
};

/// A gather moves nothing: it waits for the others' `published`, and ends with this rank's
/// `released`. Gradients are written to shared memory too, and each rank sums its own shard of
/// them: at the next call that finds them complete, at the latest when their buffers are needed.
class SharedMemoryCommunicator final : public BufferedCommunicator {
 public:
  explicit SharedMemoryCommunicator(HostMemory memory) : host_(std::move(memory)) {}

  [[nodiscard]] int rank() const override { return host_.group().rank(); }
  [[nodiscard]] int world_size() const override { return host_.group().size(); }
  [[nodiscard]] std::string transport() const override { return "shared memory"; }
  [[nodiscard]] bool gathers_in_place() const override { return true; }

 private:
  /// A shared buffer may be smaller than the engine's own gradients: these come in parts.
  struct Posted : Exchange {
    int number = 0;          ///< which of the two in flight
    uint32_t base = 0;       ///< parts of earlier reductions of this number
    int64_t part_numel = 0;  ///< of a shard
    uint32_t parts = 1;
    uint32_t posted = 0;
    uint32_t summed = 0;
  };
  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override {
    auto memory = host_.allocate(segments(), host_.group().ranks(), rank(), ledger(),
                                 [this](auto mine, auto all) { gather_numbers(mine, all); });
    memory->reduce = host_.reduce_buffers(ledger());
    return memory;
  }
  void* start_gather(Segment segment, void* /*slot*/, const GatherEvents& /*after*/) override {
    return host_.shard(segment, 0);
  }
  void finish_gather(Segment segment) override {
    sum_complete_parts();
    host_.await_published(segment);
    ++host_.versions(segment).read;
  }
  void finish_reading(Segment segment) override { host_.release(segment); }
  void await_readers(Segment segment) override { host_.await_readers(segment); }
  void show_published(Segment segment) override { host_.publish(segment); }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Posted>();
  }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override {
    auto& mine = static_cast<Posted&>(exchange);
    static_cast<void>(advance(mine, /*wait=*/true));
    static_cast<void>(reached(&SharedGroup::Reduction::summed, mine, mine.parts, /*wait=*/true));
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    host_.group().gather_numbers(mine, all);
  }
  void interrupt(const std::string& why) override { host_.group().cancel(why); }
  [[nodiscard]] int rank_of_world(int member) const override {
    return host_.group().ranks().rank_at(member);
  }

  void plan_parts(Posted& posted);
  void post_part(Posted& posted);
  void copy_part(const Posted& posted) const;
  [[nodiscard]] bool advance(Posted& posted, bool wait);
  [[nodiscard]] bool reached(SharedCounter SharedGroup::Reduction::*counter, const Posted& posted,
                             uint32_t parts, bool wait) const;
  void sum_part(Posted& posted);
  void sum_complete_parts();

  HostMemory host_;
  int next_number_ = 0;
  std::array<uint32_t, SharedGroup::kReductions> parts_so_far_{};
};

}  // namespace sherd::detail
