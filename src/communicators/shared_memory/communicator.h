#pragma once
// Ranks that are processes of one host and share its memory (docs/design/shared-memory.md).

#include <deque>
#include <memory>
#include <vector>

#include "communicators/shared_memory/group.h"
#include "communicators/shared_memory/layout.h"
#include "communicators/shared_memory/region.h"
#include "communicators/shared_memory/shared_buffers.h"

namespace sherd::detail {

/// The ranks' travelling shards lie side by side in one region, so that a gather moves nothing: it
/// is a wait for the others' `published`, and ends with this rank's `released`. Gradients are
/// written into shared memory too, and each rank adds up its own piece of all of them: as soon as
/// they lie there, if it comes by, at the latest when its buffers are needed.
class SharedMemoryCommunicator final : public Communicator {
 public:
  /// `data`: the file that all of them have, without a size yet.
  SharedMemoryCommunicator(std::unique_ptr<SharedGroup> group, SharedRegion data)
      : data_(std::move(data)), group_(std::move(group)) {}

  [[nodiscard]] int rank() const override { return group_->rank(); }
  [[nodiscard]] int world_size() const override { return group_->size(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment segment) override;
  void publish(Segment segment) override;
  [[nodiscard]] bool gathers_in_place() const override { return true; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment segment) override;
  void release(Segment segment) override;
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override {
    return static_cast<int>(pending_.size());
  }
  void finish_reductions() override;
  void abandon() override;
  void all_reduce(std::span<double> values, ReduceOp op) override;
  void barrier() override;

 private:
  enum class Gather { None, Started, Read };
  /// This rank's own account of a segment.
  struct SegmentState {
    uint32_t published = 0;  ///< versions of the piece
    uint32_t read = 0;       ///< gathers that were waited for
    uint32_t released = 0;   ///< of those, gathers that ended
    Gather gather = Gather::None;
    int64_t acquired = 0;  ///< offset of its reduce buffer; 0 where it has none
  };
  struct Pending {
    Segment segment;
    Reduction target;
    int64_t gradients;   ///< offset of the buffer that others read
    int number;          ///< which of the two in flight
    uint32_t base;       ///< parts of earlier reductions of this number
    int64_t part_numel;  ///< of a piece
    uint32_t parts;
    uint32_t posted = 0;
    uint32_t summed = 0;
  };
  void map_and_populate();
  [[nodiscard]] SegmentLine& line(Segment segment, int member) const;
  [[nodiscard]] SegmentState& state(Segment segment) {
    return states_[static_cast<size_t>(segment)];
  }
  [[nodiscard]] const SegmentSpec& spec(Segment segment) const {
    return segments_[static_cast<size_t>(segment)];
  }
  [[nodiscard]] Pending make_pending(Segment segment, const Reduction& target);
  void post_part(Pending& pending);
  void copy_part(const Pending& pending) const;
  [[nodiscard]] bool advance(Pending& pending, bool wait);
  [[nodiscard]] bool reached(SharedCounter SharedGroup::Reduction::*counter, const Pending& pending,
                             uint32_t parts, bool wait) const;
  void check_same_gradients(const Pending& pending) const;
  void sum_part(Pending& pending);
  void sum_what_lies_ready();
  void finish_oldest();

  SharedRegion data_;
  std::unique_ptr<SharedGroup> group_;
  SharedLayout layout_;
  std::vector<SegmentSpec> segments_;
  std::vector<SegmentState> states_;
  std::vector<LedgerEntry> pieces_;
  std::unique_ptr<SharedReduceBuffers> buffers_;
  std::deque<Pending> pending_;
  int next_number_ = 0;
  std::array<uint32_t, SharedGroup::kReductions> parts_so_far_{};
};

}  // namespace sherd::detail
