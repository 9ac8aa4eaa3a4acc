#pragma once
// Ranks that are processes, over c10d process groups (Gloo): the way between hosts.

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "communicators/history.h"
#include "communicators/reduce_buffers.h"
#include "communicators/roster.h"

namespace sherd::detail {

/// The process groups of one communicator. Two, so that a gather never waits behind a reduction.
struct ProcessGroups {
  c10::intrusive_ptr<c10d::Backend> gather;
  c10::intrusive_ptr<c10d::Backend> reduce;
  Roster roster;
};

/// Gathers by all-gather into the arena's slot. Reduces by sending each rank its piece in the dtype
/// that travels and summing what arrives here in fp32 and rank order: the backend's own
/// reduce-scatter sums in another order, and over Gloo costs an all-reduce. Segments larger than a
/// block's are exchanged in parts of at most that size, so that no more than two blocks' gradients
/// are received at a time.
class C10dCommunicator final : public Communicator {
 public:
  explicit C10dCommunicator(ProcessGroups groups) : groups_(std::move(groups)) {}

  [[nodiscard]] int rank() const override { return groups_.gather->getRank(); }
  [[nodiscard]] int world_size() const override { return groups_.gather->getSize(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment /*segment*/) override {}
  void publish(Segment /*segment*/) override {}
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment segment) override;
  void release(Segment /*segment*/) override {}
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override {
    return static_cast<int>(pending_.size());
  }
  void finish_reductions() override;
  void abandon() override;
  [[nodiscard]] int64_t most_received_bytes() const override;
  void all_reduce(std::span<double> values, ReduceOp op) override;
  void barrier() override;

  /// Each rank's bytes, by rank. Collective.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(const std::string& bytes);
  /// Copies `data` of `root` to all. Collective.
  void broadcast_bytes(void* data, int64_t bytes, int root);

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  struct Pending {
    Segment segment;
    Reduction target;
    c10::ScalarType dtype;
    void* acquired;  ///< null where the gradients are the engine's own
    int first_tag;
    at::Tensor signatures = {};  ///< by rank; this rank's from the start
    std::vector<Work> sends = {};
    std::vector<Work> receives = {};  ///< of the part under way, and of the signatures
    Buffer received = {};             ///< of the other ranks, in rank order
    int64_t done = 0;                 ///< elements of the piece that are summed
    [[nodiscard]] int64_t element_bytes() const {
      return static_cast<int64_t>(c10::elementSize(dtype));
    }
    [[nodiscard]] char* gradients() const {
      // A send takes its tensor as one that may be written to, and does not.
      return static_cast<char*>(acquired != nullptr ? acquired : const_cast<float*>(target.source));
    }
  };
  [[nodiscard]] int64_t part_numel(const Pending& pending) const;
  [[nodiscard]] int64_t next_part(const Pending& pending) const;
  void exchange_signatures(Pending& pending);
  void post_sends(Pending& pending);
  void post_receives(Pending& pending);
  void finish_part(Pending& pending);
  void finish_oldest();

  ProcessGroups groups_;
  std::vector<SegmentSpec> segments_;
  std::vector<Buffer> shards_;
  std::map<Segment, Work> gathers_;
  std::map<Segment, void*> acquired_;
  std::unique_ptr<ReduceBuffers> buffers_;
  std::vector<Buffer> receive_buffers_;  ///< free ones
  std::shared_ptr<MemoryLedger> ledger_;
  std::deque<Pending> pending_;
  int next_tag_ = 0;
  History history_;
};

}  // namespace sherd::detail
