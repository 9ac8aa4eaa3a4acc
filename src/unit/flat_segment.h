#pragma once
// One flat segment of a unit: its memory on this rank, and the module's parameters as views of
// where it is gathered.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include "sherd/options.h"
#include "storage/gather_arena.h"
#include "storage/movable_storage.h"
#include "storage/stores.h"
#include "unit/segment_gradients.h"
#include "unit/shard_values.h"

namespace sherd::detail {

/// [Note: Memory of a segment]
/// - the *sharded parameters* [shard_numel] in the layout's dtype: the communicator's memory or a
///   Storage (Part::Parameters). A gather reads them where they are kept, or copies them to their
///   place in the slot of the gathered segment.
/// - the *master* [shard_numel] fp32, which the optimizer updates. It is the sharded parameters if
///   they are fp32 or there is no other. Split masters have *low halves* [shard_numel] int16: what
///   the sharded parameters in bf16 leave of them.
/// - the *gathered segment* [world × shard_numel]: an arena's slot or the communicator's memory.
///   Parameters view it through one storage whose address changes on unshard and reshard.
/// - the *post-forward shard*: 1/n of the gathered segment, if reshard_after_forward_size is set.
/// - gradients: see SegmentGradients. Frozen segments have neither these nor a master.
class FlatSegment {
 public:
  /// `shapes`, `names`: of its parameters, by place. `master`: if it is trainable and in bf16.
  FlatSegment(SegmentLayout layout, std::vector<std::vector<int64_t>> shapes,
              const std::vector<std::string>& names, const std::string& unit, Master master);
  ~FlatSegment();
  FlatSegment(const FlatSegment&) = delete;
  FlatSegment& operator=(const FlatSegment&) = delete;

  /// Makes the storage of the sharded parameters if they are offloaded; called before spec().
  void store_parameters(const Stores& stores);
  /// Takes the sharded parameters from the communicator, unless they are offloaded, and allocates
  /// the master if it is another tensor. Throws Error(Usage) if the communicator keeps the sharded
  /// parameters elsewhere.
  void attach(const ModelCommunicators& communicators, Communicator::Segment id,
              const std::shared_ptr<MemoryLedger>& ledger, const Stores& stores);
  /// What the communicator over the shard group is told of it.
  [[nodiscard]] SegmentSpec spec(const std::string& unit, bool is_root) const;

  /// A view of the parameter at `place`, whose address follows the segment; in fp32 while it is
  /// gathered in full precision.
  [[nodiscard]] at::Tensor parameter_view(size_t place) const;
  /// Where the parameter lies now: with the gathered segment, or, while that is resharded, in a
  /// storage that names the parameter in an error when it is asked for its address.
  [[nodiscard]] c10::Storage storage_of(size_t place) const;
  /// Those that gathered parameters view.
  [[nodiscard]] std::array<c10::StorageImpl*, 2> storages() const {
    return {storage_.get(), wide_storage_.get()};
  }

  [[nodiscard]] bool is_gathered() const { return gathered_ != nullptr; }
  /// Starts to gather: parameters point there from now on, and may be used after wait_gather().
  void gather(GatherArena& arena, bool full_precision);
  void wait_gather();
  /// Frees it: parameters point at memory without access rights.
  void release(GatherArena& arena);
  /// Where gathering moves nothing, the gathered segment is the ranks' own shards: releases it and
  /// points parameters at a copy, which may be written to.
  void copy_aside();
  /// Whether it is, or would be, gathered in fp32 for evaluation.
  [[nodiscard]] bool has_full_precision() const {
    return communicators_->full_precision != nullptr && has_separate_master();
  }
  [[nodiscard]] bool in_full_precision() const { return in_full_precision_; }

  /// Copies this rank's part of the gathered segment, for later gathers in the smaller group.
  void keep_post_forward_shard();
  /// Parameters are about to change.
  void forget_post_forward_shard() { has_post_forward_shard_ = false; }

  /// fp32 [shard_numel]; undefined of a frozen segment and where masters are no fp32 tensor.
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  /// The sharded parameters [shard_numel], to be used as their storage says.
  [[nodiscard]] const at::Tensor& travelling() const { return travelling_; }
  /// int16 [shard_numel] of split masters, else undefined.
  [[nodiscard]] const at::Tensor& low() const { return low_; }
  /// Of travelling(), after attach().
  [[nodiscard]] Storage& parameters() const { return *parameters_; }
  /// Of master() or low(), where they are apart from the sharded parameters; else null.
  [[nodiscard]] Storage* separate_master() const { return separate_master_.get(); }
  /// Whether some of values() is in a file.
  [[nodiscard]] bool has_values_in_file() const;
  /// What holds the values: the master, or the travelling shard where there is no other.
  [[nodiscard]] ShardValues values() const;
  /// Whether there is an fp32 shard that is rounded into the travelling shard.
  [[nodiscard]] bool has_separate_master() const;
  /// Whether masters lie in two halves.
  [[nodiscard]] bool has_split_master() const { return master_format_ == Master::Split; }
  /// Float32 for all that does not travel in bf16.
  [[nodiscard]] Master master_format() const { return master_format_; }
  /// Waits until no rank reads master or travelling shard.
  void begin_update();
  /// Both have been written, by the current stream: on a device perhaps one of the optimizer's,
  /// beside what computes.
  void publish();
  /// The current stream goes on when an update that goes on beside it has written both and read the
  /// gradient. Gathers wait for themselves.
  void await_update() const;
  /// The shards are given to callers, who may use them at any time: updates are to be awaited.
  void expose() { is_exposed_ = true; }
  [[nodiscard]] bool is_exposed() const {
    return is_exposed_ || (gradients_ != nullptr && gradients_->is_exposed());
  }
  /// Rounds the master into the travelling shard where it is one of its own.
  void write_travelling_from_master();

  /// Null where frozen.
  [[nodiscard]] SegmentGradients* gradients() const { return gradients_.get(); }
  [[nodiscard]] bool has_gradient() const { return gradients_ != nullptr && gradients_->has_sum(); }
  /// [shard_numel] in the layout's reduce_dtype, where has_gradient().
  [[nodiscard]] const at::Tensor& gradient() const { return gradients_->shard(); }

  [[nodiscard]] const SegmentLayout& layout() const { return layout_; }

 private:
  void point_parameters_at(void* gathered, bool is_forbidden = true);
  [[nodiscard]] GatherEvents events_before_gather(const GatherArena& arena) const;
  [[nodiscard]] bool gathers_parameters() const {
    return gathered_by_ == communicators_->shards.get();
  }
  /// Whether this rank's shard is copied to its place in the slot before the gather.
  [[nodiscard]] bool is_copied_to_slot() const {
    return gathers_parameters() && parameters_->needs_place();
  }
  void fetch_parameters(const GatherArena& arena);
  void give_back_slot(GatherArena& arena);
  void take_parameters();

  SegmentLayout layout_;
  std::vector<std::vector<int64_t>> shapes_;
  Master master_format_;
  const ModelCommunicators* communicators_ = nullptr;
  Communicator::Segment id_ = 0;
  std::shared_ptr<void> forbidden_;  ///< addresses without access rights, on CPUs
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  c10::intrusive_ptr<c10::StorageImpl> wide_storage_;                     ///< for fp32 views of it
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> forbidden_storages_;  ///< by place
  std::unique_ptr<SegmentGradients> gradients_;
  Communicator* gathered_by_ = nullptr;
  void* gathered_ = nullptr;
  void* slot_ = nullptr;  ///< the arena's slot it is gathered in, if any
  at::Tensor aside_;      ///< the copy that parameters lie in, after copy_aside()
  bool in_full_precision_ = false;
  bool has_post_forward_shard_ = false;
  std::unique_ptr<Storage> parameters_;
  std::unique_ptr<Storage> separate_master_;
  std::optional<c10::Event> written_;  ///< comes when the shards have been
  at::Tensor travelling_;
  at::Tensor master_;
  at::Tensor low_;
  std::optional<c10::Stream> written_on_;  ///< with written_
  bool is_exposed_ = false;
};

}  // namespace sherd::detail
