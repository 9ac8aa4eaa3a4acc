#pragma once
// One flat segment of a unit: its memory on this rank, and the module's parameters as views of
// where it is gathered.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "forbidden_region.h"
#include "shard_layout.h"
#include "sherd/communicator.h"

namespace sherd::detail {

/// [Note: Five kinds of bytes of a segment]
/// - the *travelling shard* [shard_numel] in the layout's dtype, owned by the communicator;
/// - the *master shard* [shard_numel] fp32, which the optimizer updates: the travelling shard
/// itself where that is fp32;
/// - the *gathered segment* [world × shard_numel], an arena's slot or the communicator's own, which
/// parameters view
///   through one storage whose address is changed on unshard and reshard;
/// - the *reduce buffer* [world × shard_numel], the communicator's, which gradient views point at
/// during backward;
/// - the *gradient shard* [shard_numel] fp32, the reduced sum, allocated with the first gradient.
/// Frozen segments have the first and third alone.
class FlatSegment {
 public:
  FlatSegment(SegmentLayout layout, std::vector<std::vector<int64_t>> shapes);
  ~FlatSegment();
  FlatSegment(const FlatSegment&) = delete;
  FlatSegment& operator=(const FlatSegment&) = delete;

  /// Takes its travelling shard from the communicator and allocates the master where it is another.
  void attach(Communicator& communicator, Communicator::Segment id,
              const std::shared_ptr<MemoryLedger>& ledger);
  /// A view of the parameter at `place`, whose address follows the segment.
  [[nodiscard]] at::Tensor parameter_view(size_t place) const;

  /// Tells what an access at the parameter's place means while it is resharded.
  void name_parameter(size_t place, const std::string& parameter, const std::string& unit);

  /// Points the parameters at the gathered segment, or (null) at memory that must not be touched.
  void point_parameters_at(void* gathered);

  /// fp32 [shard_numel]; of a frozen segment undefined.
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  /// The travelling shard as a tensor [shard_numel].
  [[nodiscard]] const at::Tensor& travelling() const { return travelling_; }
  /// Whether optimizer writes must be rounded into the travelling shard.
  [[nodiscard]] bool has_separate_master() const;
  /// Rounds the master into the travelling shard where they are two.
  void write_travelling_from_master();

  // Gradients of one backward, in the reduce buffer.
  [[nodiscard]] bool gradients_bound() const { return reduce_buffer_ != nullptr; }
  void bind_gradients();
  [[nodiscard]] at::Tensor gradient_view(size_t place) const { return gradient_views_[place]; }
  [[nodiscard]] bool written(size_t place) const { return written_[place]; }
  void mark_written(size_t place) { written_[place] = true; }
  /// Fills what nobody wrote with zeros and starts the reduction into the gradient shard.
  void reduce(float scale);
  void abandon_gradients();

  /// fp32 [shard_numel], the sum so far; meaningful where has_gradient().
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }
  [[nodiscard]] bool has_gradient() const { return has_gradient_; }
  void forget_gradient() { has_gradient_ = false; }

  [[nodiscard]] const SegmentLayout& layout() const { return layout_; }
  [[nodiscard]] Communicator::Segment id() const { return id_; }
  void* slot = nullptr;  ///< the arena's slot it is gathered in, if any

 private:
  [[nodiscard]] Communicator::Reduction reduction(float scale) const;
  void zero_unwritten();

  SegmentLayout layout_;
  std::vector<std::vector<int64_t>> shapes_;
  Communicator* communicator_ = nullptr;
  Communicator::Segment id_ = 0;
  std::shared_ptr<MemoryLedger> ledger_;
  ForbiddenRegion forbidden_;
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  c10::intrusive_ptr<c10::StorageImpl> gradient_storage_;
  std::vector<at::Tensor> gradient_views_;
  std::vector<bool> written_;
  void* reduce_buffer_ = nullptr;
  Buffer master_buffer_;
  Buffer gradient_buffer_;
  at::Tensor travelling_;
  at::Tensor master_;
  at::Tensor gradient_;
  bool has_gradient_ = false;
};

}  // namespace sherd::detail
