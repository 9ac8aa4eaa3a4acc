#include "unit/segment_gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "kernels/shard_math.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

SegmentGradients::SegmentGradients(const SegmentLayout& layout,
                                   const std::vector<std::vector<int64_t>>& shapes)
    : layout_(layout), written_(layout.places.size(), false) {
  known_.used.assign(layout.places.size(), false);
  storage_ = movable_storage(layout.bytes(), layout.device);
  for (size_t i = 0; i < layout.places.size(); ++i) {
    views_.push_back(view_of(storage_, layout.places[i].offset, shapes[i], layout.dtype));
  }
}

SegmentGradients::~SegmentGradients() {
  point_at(*storage_, nullptr);  // views may outlive the model
}

void SegmentGradients::attach(const ModelCommunicators& communicators, Communicator::Segment id,
                              const std::shared_ptr<MemoryLedger>& ledger, const Stores& stores) {
  communicators_ = &communicators;
  id_ = id;
  ledger_ = ledger;
  storage_of_shard_ = stores.make(Part::Gradients, layout_.shard_numel, layout_.reduce_dtype,
                                  MemoryKind::GradientShard);
}

// What is written back may fail, so that no destructor does it.
template <class Work>
void SegmentGradients::change(const Work& work) {
  squares_change();
  if (storage().is_held()) {
    return work();
  }
  storage().hold(Access::Write);
  try {
    work();
  } catch (...) {
    storage().drop();
    throw;
  }
  storage().write_back();
}

// Until put_away(), to be added to, or to be written if there is no sum yet.
void SegmentGradients::hold_shard() {
  storage().hold(known_.has_sum ? Access::Write : Access::Overwrite);
}

void SegmentGradients::put_away() {
  if (storage().is_held() && !layout_.device.is_cpu() && !layout_.device.is_meta()) {
    squares_on_device_ = shard_math::sum_of_squares_on_device(shard());
  }
  storage().write_back();
}

void SegmentGradients::squares_change() {
  squares_ = kUnknown;
  squares_on_device_.reset();
}

at::Tensor SegmentGradients::shard_at(void* data) const {
  return flat_tensor(data, layout_.shard_numel, layout_.reduce_dtype, layout_.device);
}

Communicator::Reduction SegmentGradients::target(float scale) {
  static_cast<void>(shard());  // allocates a resident one, in the name of its unit
  if (!is_replicated()) {
    return {.shard = shard().mutable_data_ptr(),
            .accumulate = known_.has_sum,
            .scale = scale,
            .squares = &squares_,
            .dtype = layout_.reduce_dtype};
  }
  if (!partial_reduce_output_.defined()) {
    partial_reduce_output_ = shard_at(communicators_->replicas->acquire_reduce_buffer(id_, {}));
  }
  return {.shard = partial_reduce_output_.mutable_data_ptr(),
          .accumulate = has_partial_reduce_output_,
          .scale = scale,
          .dtype = layout_.reduce_dtype};
}

void SegmentGradients::bind() {
  if (!is_replicated()) {
    if (known_.has_sum) {
      storage().prefetch();  // while the unit's backward is computed
    } else if (layout_.world_size == 1) {
      hold_shard();  // operators may write into it
    }
  }
  void* const buffer = communicators_->shards->acquire_reduce_buffer(id_, target(1.0F));
  reduce_buffer_ = flat_tensor(buffer, layout_.numel(), layout_.dtype, layout_.device);
  point_at(*storage_, buffer);
}

void SegmentGradients::unbind() {
  reduce_buffer_.reset();
  point_at(*storage_, nullptr);
  for (size_t place = 0; place < written_.size(); ++place) {
    known_.used[place] = known_.used[place] || written_[place];
    written_[place] = false;
  }
}

void SegmentGradients::zero_unwritten() {
  int64_t done = 0;
  const auto zero_until = [&](int64_t end) {
    if (end > done) {
      reduce_buffer_.narrow(0, done, end - done).zero_();
    }
  };
  for (size_t i = 0; i < layout_.places.size(); ++i) {
    if (written_[i]) {
      zero_until(layout_.places[i].offset);
      done = layout_.places[i].offset + layout_.places[i].numel;
    }
  }
  zero_until(layout_.numel());
}

void SegmentGradients::accumulate_unsharded() {
  storage().drop();  // the last micro-batch adds to it; the reduce buffer is another memory
  zero_unwritten();
  if (!unsharded_sum_.defined()) {
    const int64_t bytes = layout_.numel() * static_cast<int64_t>(sizeof(float));
    unsharded_buffer_ = Buffer(bytes, MemoryKind::UnshardedGradient, ledger_, layout_.device);
    unsharded_sum_ =
        flat_tensor(unsharded_buffer_.data(), layout_.numel(), c10::kFloat, layout_.device);
  }
  shard_math::sum_in_rank_order(unsharded_sum_, known_.has_unsharded_sum, 1.0F, {reduce_buffer_});
  known_.has_unsharded_sum = true;
  communicators_->shards->release_reduce_buffer(id_);
  if (partial_reduce_output_.defined() && !has_partial_reduce_output_) {
    communicators_->replicas->release_reduce_buffer(id_);  // taken again by the next reduction
    partial_reduce_output_.reset();
  }
  unbind();
}

void SegmentGradients::free_unsharded_sum() {
  if (!known_.has_unsharded_sum) {
    unsharded_sum_.reset();
    unsharded_buffer_ = {};
  }
}

void SegmentGradients::reduce(float scale) {
  if (known_.has_unsharded_sum && bound()) {
    accumulate_unsharded();
  }
  if (!is_replicated()) {
    hold_shard();
  }
  Communicator::Reduction reduction = target(scale);
  if (std::exchange(known_.has_unsharded_sum, false)) {
    reduction.source = unsharded_sum_.const_data_ptr<float>();
  } else {
    zero_unwritten();
  }
  squares_change();
  communicators_->shards->reduce(id_, reduction);
  (is_replicated() ? has_partial_reduce_output_ : known_.has_sum) = true;
  awaits_hook_ = true;
  unbind();
}

at::Tensor SegmentGradients::reduced_part() {
  Communicator& replicas = *communicators_->replicas;
  return flat_tensor(replicas.travelling_shard(id_), layout_.shard_numel / replicas.world_size(),
                     layout_.reduce_dtype, layout_.device);
}

void SegmentGradients::start_all_reduce(bool is_first) {
  Communicator& replicas = *communicators_->replicas;
  replicas.begin_update(id_);
  const at::Tensor part = reduced_part();
  if (is_first && known_.has_sum) {
    // Callers may have changed the shard, which is what is added to.
    const auto in_use = storage().read();
    part.copy_(shard().narrow(0, replicas.rank() * part.numel(), part.numel()));
  }
  replicas.reduce(id_, {.shard = part.mutable_data_ptr(),
                        .accumulate = known_.has_sum || !is_first,
                        .dtype = layout_.reduce_dtype});
  partial_reduce_output_.reset();
  has_partial_reduce_output_ = false;
}

void SegmentGradients::gather_sum() {
  Communicator& replicas = *communicators_->replicas;
  replicas.publish(id_);
  storage().hold(Access::Overwrite);
  squares_change();
  void* slot = replicas.gathers_in_place() ? nullptr : shard().mutable_data_ptr();
  summed_ = replicas.gather(id_, slot, {});
}

void SegmentGradients::wait_sum() {
  communicators_->replicas->wait_gather(id_);
  if (summed_ != shard().data_ptr()) {
    // Gathered in place it lies in memory that the replicas share; the shard is this rank's own.
    shard().copy_(shard_at(summed_));
  }
  communicators_->replicas->release(id_);
  known_.has_sum = true;
}

void SegmentGradients::run_all_reduce_hook() {
  if (std::exchange(awaits_hook_, false) && all_reduce_hook_) {
    change([&] { all_reduce_hook_(shard()); });
  }
}

at::Tensor SegmentGradients::sum_of_squares() const {
  if (!std::isnan(squares_) && !exposed_) {
    return at::scalar_tensor(squares_, at::kDouble);
  }
  if (squares_on_device_.defined()) {
    return squares_on_device_;
  }
  const auto in_use = storage().read();
  return shard_math::sum_of_squares_on_device(shard());
}

void SegmentGradients::scale(float factor) {
  if (known_.has_sum) {
    change([&] { shard_math::scale_in_place(shard(), factor); });
  }
}

void SegmentGradients::scale(const at::Tensor& factor) {
  if (known_.has_sum) {
    change([&] { shard_math::scale_in_place(shard(), factor); });
  }
}

void SegmentGradients::forget() {
  known_.has_unsharded_sum = false;
  has_partial_reduce_output_ = false;
  known_.has_sum = false;
  awaits_hook_ = false;
  known_.used.assign(known_.used.size(), false);
}

void SegmentGradients::forget(size_t place, int64_t start, int64_t numel) {
  known_.used[place] = false;
  if (known_.has_sum) {
    change([&] { shard().narrow(0, start, numel).zero_(); });
  }
  if (known_.has_unsharded_sum) {
    unsharded_sum_.narrow(0, layout_.places[place].offset, layout_.places[place].numel).zero_();
  }
  if (has_partial_reduce_output_) {
    partial_reduce_output_.narrow(0, start, numel).zero_();
  }
}

void SegmentGradients::release_shard() {
  forget();
  storage().discard();
}

void SegmentGradients::abandon() {
  unbind();
  partial_reduce_output_.reset();
  storage().drop();
  forget();
}

}  // namespace sherd::detail
