#pragma once
// Ranks that are processes of one host and share its memory (docs/design/shared-memory.md).

#include <array>
#include <memory>
#include <vector>

#include "comm/shared_memory/group.h"
#include "comm/shared_memory/layout.h"
#include "comm/shared_memory/meeting.h"
#include "comm/shared_memory/region.h"
#include "comm/shared_memory/shared_buffers.h"

namespace sherd::detail {

/// The ranks' travelling shards lie side by side in one region, so that a gather moves nothing: it
/// is a wait for the others' `published`, and ends with this rank's `released`. Gradients are
/// written into shared memory too, and each rank adds up its own piece of all of them: at the next
/// call that finds them complete, at the latest when its buffers are needed.
class SharedMemoryCommunicator final : public BufferedCommunicator {
 public:
  explicit SharedMemoryCommunicator(HostMemory memory)
      : data_(std::move(memory.data)), group_(std::move(memory.group)) {}

  [[nodiscard]] int rank() const override { return group_->rank(); }
  [[nodiscard]] int world_size() const override { return group_->size(); }
  [[nodiscard]] std::string transport() const override { return "shared memory"; }
  [[nodiscard]] bool gathers_in_place() const override { return true; }

 private:
  /// This rank's own account of a segment.
  struct Versions {
    uint32_t published = 0;  ///< of the piece
    uint32_t read = 0;       ///< gathers that were waited for
    uint32_t released = 0;   ///< of those, gathers that ended
  };
  /// What the others read may be smaller than the engine's own gradients: these come in parts.
  struct Posted : Exchange {
    int number = 0;          ///< which of the two in flight
    uint32_t base = 0;       ///< parts of earlier reductions of this number
    int64_t part_numel = 0;  ///< of a piece
    uint32_t parts = 1;
    uint32_t posted = 0;
    uint32_t summed = 0;
  };
  [[nodiscard]] std::shared_ptr<CommunicatorMemory> allocate() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override;
  void finish_reading(Segment segment) override;
  void await_readers(Segment segment) override;
  void show_published(Segment segment) override;
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override;
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  void interrupt(const std::string& why) override { group_->cancel(why); }
  [[nodiscard]] int rank_of_world(int member) const override {
    return group_->rank_of_world(member);
  }

  void map_and_populate();
  [[nodiscard]] char* piece(Segment segment) const;
  [[nodiscard]] SegmentLine& line(Segment segment, int member) const;
  [[nodiscard]] Versions& versions(Segment segment) {
    return versions_[static_cast<size_t>(segment)];
  }
  void plan_parts(Posted& posted);
  void post_part(Posted& posted);
  void copy_part(const Posted& posted) const;
  [[nodiscard]] bool advance(Posted& posted, bool wait);
  [[nodiscard]] bool reached(SharedCounter SharedGroup::Reduction::*counter, const Posted& posted,
                             uint32_t parts, bool wait) const;
  void sum_part(Posted& posted);
  void sum_what_lies_ready();

  SharedRegion data_;
  std::unique_ptr<SharedGroup> group_;
  SharedLayout layout_;
  std::vector<Versions> versions_;
  std::vector<LedgerEntry> pieces_;
  int next_number_ = 0;
  std::array<uint32_t, SharedGroup::kReductions> parts_so_far_{};
};

}  // namespace sherd::detail
