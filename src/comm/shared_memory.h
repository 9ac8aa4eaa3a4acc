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

/// For ranks of one host, all of which share `memory`.
[[nodiscard]] std::unique_ptr<Communicator> make_shared_memory_communicator(HostMemory memory);

}  // namespace sherd::detail
