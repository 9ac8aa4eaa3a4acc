#pragma once
// The communicators of one sharded model: which there are follows from mesh and options.

#include <functional>
#include <memory>
#include <vector>

#include "sherd/options.h"
#include "sherd/world.h"
#include "unit/segment_gradients.h"

namespace sherd::detail {

struct SegmentOfUnit;

class ModelCommunicators {
 public:
  /// Collective.
  ModelCommunicators(Mesh& mesh, const ShardOptions& options, bool full_precision);

  /// Tells each communicator of every segment, in this order. Collective.
  void attach(const std::vector<SegmentOfUnit>& segments, c10::Device device,
              const std::shared_ptr<MemoryLedger>& ledger);
  [[nodiscard]] SegmentCommunicators all() const;
  [[nodiscard]] Communicator& shards() const { return *shards_; }
  /// Null without replicas.
  [[nodiscard]] Communicator* replicas() const { return replicas_.get(); }
  [[nodiscard]] bool keeps_post_forward_shards() const { return post_forward_ != nullptr; }
  /// Calls `visit(communicator)` for each that there is.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (Communicator* const one :
         {shards_.get(), replicas_.get(), post_forward_.get(), full_precision_.get()}) {
      if (one != nullptr) {
        visit(*one);
      }
    }
  }
  /// Forgets what an exception left behind: `in_backward`, or in a forward.
  void abandon(bool in_backward);
  [[nodiscard]] Communicator::Counts counts() const;
  /// Communicator::signature() of each.
  [[nodiscard]] std::vector<double> signatures() const;
  /// Communicator::check_exchanges() of each, after one wait. Not collective.
  void check_exchanges(const std::function<void()>& wait) const;
  /// What reductions will receive into, at most.
  [[nodiscard]] int64_t most_received_bytes() const;

 private:
  [[nodiscard]] std::vector<const Communicator*> made() const;

  std::unique_ptr<Communicator> shards_;
  std::unique_ptr<Communicator> replicas_;
  std::unique_ptr<Communicator> post_forward_;
  std::unique_ptr<Communicator> full_precision_;
};

}  // namespace sherd::detail
