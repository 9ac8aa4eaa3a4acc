#pragma once
// The gradients of one flat segment, from where they are born to the sum that the optimizer reads.

#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "storage/stores.h"
#include "unit/communicators.h"
#include "unit/shard_layout.h"

namespace sherd::detail {

/// [Note: The way of a gradient]
/// - the *reduce buffer* [world × shard_numel] in the dtype that travels, the communicator's: where
///   operators and hooks write during backward, through views of one movable storage;
/// - the *unsharded sum* [world × shard_numel] fp32: only if micro-batches accumulate without
///   communication, from the first of them until the reduction of the last one has ended;
/// - the *partial reduce output* [shard_numel] in reduce_dtype, the sum over the shard group: only
///   if there are replicas, as input of their all-reduce, which sums [shard_numel / replicas] on
///   each rank and gathers these parts;
/// - the *gradient shard* [shard_numel] in reduce_dtype, the sum over all ranks and micro-batches,
///   in a Storage (Part::Gradients) that is held while it is added to and while something reads it.
///   A resident one is allocated with the first gradient.
class SegmentGradients {
 public:
  SegmentGradients(const SegmentLayout& layout, const std::vector<std::vector<int64_t>>& shapes);
  ~SegmentGradients();
  SegmentGradients(const SegmentGradients&) = delete;
  SegmentGradients& operator=(const SegmentGradients&) = delete;

  void attach(const ModelCommunicators& communicators, Communicator::Segment id,
              const std::shared_ptr<MemoryLedger>& ledger, const Stores& stores);

  // During backward, in the reduce buffer.
  [[nodiscard]] bool bound() const { return reduce_buffer_.defined(); }
  void bind();
  [[nodiscard]] at::Tensor view(size_t place) const { return views_[place]; }
  [[nodiscard]] bool written(size_t place) const { return written_[place]; }
  void mark_written(size_t place) { written_[place] = true; }
  /// Whether this rank has written a gradient since forget(); or, once the ranks have agreed, any.
  [[nodiscard]] bool used(size_t place) const { return known_.used[place]; }
  void set_used(size_t place, bool used) { known_.used[place] = used; }

  /// Fills with zeros what was not written and starts the reduction over the shard group, together
  /// with what accumulate_unsharded() left.
  void reduce(float scale);
  /// Adds to the unsharded sum instead, without communication.
  void accumulate_unsharded();
  [[nodiscard]] bool has_unsharded_sum() const { return known_.has_unsharded_sum; }
  /// Frees the memory of the unsharded sum, if the reduction that read it has ended.
  void free_unsharded_sum();

  // Over the replicas, where there are any. start_all_reduce() after the reduction has ended; again
  // where a unit is reduced again in the same backward (recomputed for each of several forwards).
  [[nodiscard]] bool awaits_all_reduce() const { return has_partial_reduce_output_; }
  void start_all_reduce(bool is_first);
  void gather_sum();
  void wait_sum();

  /// See ShardedModule::set_all_reduce_hook().
  void set_all_reduce_hook(std::function<void(const at::Tensor&)> hook) {
    all_reduce_hook_ = std::move(hook);
  }
  /// Calls it with the shard, where that has been reduced since.
  void run_all_reduce_hook();
  [[nodiscard]] bool has_all_reduce_hook() const { return static_cast<bool>(all_reduce_hook_); }

  /// What the host knows of them between two micro-batches.
  struct Known {
    bool has_unsharded_sum = false;
    bool has_sum = false;
    std::vector<bool> used = {};  ///< by place
  };
  [[nodiscard]] const Known& known() const { return known_; }
  void set_known(Known known) {
    known_ = std::move(known);
    squares_ = kUnknown;
  }

  /// [shard_numel] in the layout's reduce_dtype, meaningful where has_sum(), to be used as
  /// storage() says.
  [[nodiscard]] const at::Tensor& shard() const { return storage_of_shard_->tensor(); }
  [[nodiscard]] Storage& storage() const { return *storage_of_shard_; }
  /// The reduction that was started has ended: the shard goes back to where it is kept.
  void put_away();
  [[nodiscard]] bool has_sum() const { return known_.has_sum; }
  /// Of the shard, double [] on its device or the host's, not waited for. It was taken while
  /// gradients were added up, where the communicator could; else the shard is read.
  [[nodiscard]] at::Tensor sum_of_squares() const;
  /// The shard is given to callers, who may change it at any time.
  void expose() { exposed_ = true; }
  [[nodiscard]] bool is_exposed() const { return exposed_; }
  /// Multiplies the sum, and what further gradients are added to.
  void scale(float factor);
  /// The same by fp32 [] on the shard's device.
  void scale(const at::Tensor& factor);
  /// The next backward writes instead of adding.
  void forget();
  /// The same for one parameter: its part of the sum becomes zero, as if it had not been used.
  void forget(size_t place, int64_t start, int64_t numel);
  /// Gives the gradient shard to the next unit: its sum has been used.
  void release_shard();
  /// Forgets what a backward that failed has written, and the sums, which may hold some of it.
  void abandon();

 private:
  /// Holds the shard for `work`, which changes it.
  template <class Work>
  void change(const Work& work);
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  [[nodiscard]] bool is_replicated() const { return communicators_->replicas != nullptr; }
  void hold_shard();
  void squares_change();
  [[nodiscard]] at::Tensor shard_at(void* data) const;
  [[nodiscard]] Communicator::Reduction target(float scale);
  [[nodiscard]] at::Tensor reduced_part();
  void zero_unwritten();
  void unbind();

  const SegmentLayout& layout_;
  const ModelCommunicators* communicators_ = nullptr;
  Communicator::Segment id_ = 0;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  std::vector<at::Tensor> views_;
  std::vector<bool> written_;
  at::Tensor reduce_buffer_;
  at::Tensor partial_reduce_output_;
  void* summed_ = nullptr;  ///< where the sum over the replicas is gathered
  Buffer unsharded_buffer_;
  std::unique_ptr<Storage> storage_of_shard_;
  at::Tensor unsharded_sum_;
  Known known_;
  bool has_partial_reduce_output_ = false;
  bool awaits_hook_ = false;  ///< reduced since the hook was called
  std::function<void(const at::Tensor&)> all_reduce_hook_;
  double squares_ = kUnknown;
  at::Tensor squares_on_device_;  ///< taken before the shard left the device
  bool exposed_ = false;
};

}  // namespace sherd::detail
