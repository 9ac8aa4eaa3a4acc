#include "flat_segment.h"

#include <cstring>
#include <utility>

#include <ATen/core/TensorBase.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>

#include "kernels/kernels.h"

namespace sherd::detail {

namespace {

c10::DataPtr unowned(void* data) {
  return {data, c10::Device(c10::kCPU)};
}

// A storage that owns nothing and may be pointed elsewhere: tensors that view it, and what autograd
// saved of them, follow without a change of version.
c10::intrusive_ptr<c10::StorageImpl> movable_storage(int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               unowned(nullptr), /*allocator=*/nullptr,
                                               /*resizable=*/false);
}

at::Tensor view_of(const c10::intrusive_ptr<c10::StorageImpl>& storage, int64_t offset,
                   at::IntArrayRef shape, c10::ScalarType dtype) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype) {
  return at::from_blob(data, {numel}, c10::TensorOptions().dtype(dtype));
}

}  // namespace

FlatSegment::FlatSegment(SegmentLayout layout, std::vector<std::vector<int64_t>> shapes)
    : layout_(std::move(layout)),
      shapes_(std::move(shapes)),
      forbidden_(layout_.bytes()),
      storage_(movable_storage(layout_.bytes())),
      gradient_storage_(movable_storage(layout_.bytes())),
      written_(layout_.places.size(), false) {
  for (size_t i = 0; layout_.trainable && i < layout_.places.size(); ++i) {
    gradient_views_.push_back(
        view_of(gradient_storage_, layout_.places[i].offset, shapes_[i], layout_.dtype));
  }
  point_parameters_at(nullptr);
}

FlatSegment::~FlatSegment() {
  // Parameters may outlive the sharded model; LibTorch then says that their data is not there.
  storage_->set_data_ptr_noswap(unowned(nullptr));
  gradient_storage_->set_data_ptr_noswap(unowned(nullptr));
}

void FlatSegment::attach(Communicator& communicator, Communicator::Segment id,
                         const std::shared_ptr<MemoryLedger>& ledger) {
  communicator_ = &communicator;
  id_ = id;
  ledger_ = ledger;
  travelling_ = flat_tensor(communicator.travelling_shard(id), layout_.shard_numel, layout_.dtype);
  if (!layout_.trainable) {
    return;
  }
  if (layout_.dtype == c10::kFloat) {
    master_ = travelling_;
  } else {
    const int64_t bytes = layout_.shard_numel * static_cast<int64_t>(sizeof(float));
    master_buffer_ = Buffer(bytes, MemoryKind::MasterShard, ledger);
    master_ = flat_tensor(master_buffer_.data(), layout_.shard_numel, c10::kFloat);
  }
}

at::Tensor FlatSegment::parameter_view(size_t place) const {
  return view_of(storage_, layout_.places[place].offset, shapes_[place], layout_.dtype);
}

void FlatSegment::name_parameter(size_t place, const std::string& parameter,
                                 const std::string& unit) {
  const ParameterPlace& p = layout_.places[place];
  const auto element = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  forbidden_.name_parameter((p.offset + p.numel) * element, parameter, unit);
}

void FlatSegment::point_parameters_at(void* gathered) {
  storage_->set_data_ptr_noswap(unowned(gathered == nullptr ? forbidden_.data() : gathered));
}

bool FlatSegment::has_separate_master() const {
  return layout_.trainable && layout_.dtype != c10::kFloat;
}

void FlatSegment::write_travelling_from_master() {
  if (has_separate_master()) {
    kernels::to_bfloat16(master_.const_data_ptr<float>(),
                         static_cast<uint16_t*>(travelling_.mutable_data_ptr()),
                         layout_.shard_numel);
  }
}

Communicator::Reduction FlatSegment::reduction(float scale) const {
  return {gradient_.mutable_data_ptr<float>(), has_gradient_, scale};
}

void FlatSegment::bind_gradients() {
  if (!gradient_.defined()) {
    const int64_t bytes = layout_.shard_numel * static_cast<int64_t>(sizeof(float));
    gradient_buffer_ = Buffer(bytes, MemoryKind::GradientShard, ledger_);
    gradient_ = flat_tensor(gradient_buffer_.data(), layout_.shard_numel, c10::kFloat);
  }
  reduce_buffer_ = communicator_->acquire_reduce_buffer(id_, reduction(1.0F));
  gradient_storage_->set_data_ptr_noswap(unowned(reduce_buffer_));
}

void FlatSegment::zero_unwritten() {
  const auto element = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  auto* bytes = static_cast<char*>(reduce_buffer_);
  int64_t done = 0;
  const auto zero_until = [&](int64_t end) {
    std::memset(bytes + done * element, 0, static_cast<size_t>((end - done) * element));
  };
  for (size_t i = 0; i < layout_.places.size(); ++i) {
    if (written_[i]) {
      zero_until(layout_.places[i].offset);
      done = layout_.places[i].offset + layout_.places[i].numel;
    }
  }
  zero_until(layout_.numel());
}

void FlatSegment::reduce(float scale) {
  zero_unwritten();
  communicator_->reduce(id_, reduction(scale));
  has_gradient_ = true;
  abandon_gradients();
}

void FlatSegment::abandon_gradients() {
  reduce_buffer_ = nullptr;
  gradient_storage_->set_data_ptr_noswap(unowned(nullptr));
  written_.assign(written_.size(), false);
}

}  // namespace sherd::detail
