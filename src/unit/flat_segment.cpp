#include "unit/flat_segment.h"

#include <utility>

#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/device.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

FlatSegment::FlatSegment(SegmentLayout layout, std::vector<std::vector<int64_t>> shapes,
                         const std::vector<std::string>& names, const std::string& unit,
                         Master master)
    : layout_(std::move(layout)),
      shapes_(std::move(shapes)),
      master_format_(layout_.trainable && layout_.dtype == c10::kBFloat16 ? master
                                                                          : Master::Float32),
      forbidden_(layout_.device.is_cpu()
                     ? forbidden_addresses(layout_.bytes(), explain_use_of_view(unit))
                     : nullptr),
      storage_(movable_storage(layout_.bytes(), layout_.device)),
      wide_storage_(movable_storage(layout_.numel() * kFloatBytes, layout_.device)) {
  if (layout_.trainable) {
    gradients_ = std::make_unique<SegmentGradients>(layout_, shapes_);
  }
  point_parameters_at(nullptr);
  for (c10::StorageImpl* const storage : storages()) {
    forbid(*storage, explain_use_of_view(unit));
  }
  for (const std::string& name : names) {
    forbidden_storages_.push_back(
        forbidden_storage(layout_.bytes(), layout_.device, explain_use(name, unit)));
  }
}

FlatSegment::~FlatSegment() {
  // Parameters may outlive the sharded model; using them is then an error of LibTorch.
  for (c10::StorageImpl* const storage : storages()) {
    point_at(*storage, nullptr, /*is_forbidden=*/true);
  }
}

SegmentSpec FlatSegment::spec(const std::string& unit, bool is_root) const {
  SegmentSpec spec{unit, layout_.shard_numel, layout_.dtype, layout_.trainable, is_root};
  spec.reduce_dtype = layout_.reduce_dtype;
  if (parameters_ != nullptr) {
    spec.piece = parameters_->address();
    spec.piece_in_slot = parameters_->needs_place();
  }
  return spec;
}

void FlatSegment::store_parameters(const Stores& stores) {
  parameters_ = stores.offloaded(Part::Parameters, layout_.shard_numel, layout_.dtype,
                                 MemoryKind::TravellingShard);
}

void FlatSegment::attach(const ModelCommunicators& communicators, Communicator::Segment id,
                         const std::shared_ptr<MemoryLedger>& ledger, const Stores& stores) {
  communicators_ = &communicators;
  id_ = id;
  take_parameters();
  if (!layout_.trainable) {
    return;
  }
  gradients_->attach(communicators, id, ledger, stores);
  if (has_full_precision()) {
    separate_master_ = std::make_unique<ResidentStorage>(
        flat_tensor(communicators.full_precision->travelling_shard(id), layout_.shard_numel,
                    c10::kFloat, layout_.device));
  } else if (has_separate_master() || has_split_master()) {
    separate_master_ =
        stores.make(Part::Optimizer, layout_.shard_numel,
                    has_split_master() ? c10::kShort : c10::kFloat, MemoryKind::MasterShard);
  }
  if (separate_master_ != nullptr) {
    (has_split_master() ? low_ : master_) = separate_master_->tensor();
  } else if (layout_.dtype == c10::kFloat) {
    master_ = travelling_;
  }
}

// From their storage, or from the communicator's memory.
void FlatSegment::take_parameters() {
  Communicator& shards = *communicators_->shards;
  void* const own = shards.travelling_shard(id_);
  const auto refuse = [&](const std::string& place, const std::string& instead) {
    throw Error(ExitCode::Usage, "[fully_shard] parameters cannot be stored on " + place +
                                     " where ranks exchange by " + shards.transport() +
                                     ", which keeps them in memory of its own: " + instead);
  };
  if (parameters_ == nullptr) {
    parameters_ = std::make_unique<ResidentStorage>(
        flat_tensor(own, layout_.shard_numel, layout_.dtype, layout_.device));
  } else if (parameters_->needs_place() && own != nullptr) {
    refuse(parameters_->file() == nullptr ? "the host (Offload::parameters_on_host)"
                                          : "a disk (Offload::parameter_folder)",
           "give each rank a device of its own, which exchanges over NCCL, or leave them there.");
  } else if (!parameters_->needs_place() && own != parameters_->address()) {
    refuse("a disk (Offload::parameter_folder)",
           "use one rank, or processes with WorldOptions::transport = Transport::ProcessGroups.");
  }
  travelling_ = parameters_->tensor();
}

at::Tensor FlatSegment::parameter_view(size_t place) const {
  return view_of(in_full_precision_ ? wide_storage_ : storage_, layout_.places[place].offset,
                 shapes_[place], in_full_precision_ ? c10::kFloat : layout_.dtype);
}

c10::Storage FlatSegment::storage_of(size_t place) const {
  if (gathered_ == nullptr) {
    return forbidden_storages_[place];
  }
  return in_full_precision_ ? wide_storage_ : storage_;
}

void FlatSegment::point_parameters_at(void* gathered, bool is_forbidden) {
  gathered_ = gathered;
  if (in_full_precision_) {
    point_at(*wide_storage_, gathered, is_forbidden);
  } else {
    point_at(*storage_, gathered == nullptr ? forbidden_.get() : gathered, is_forbidden);
  }
}

void FlatSegment::gather(GatherArena& arena, bool full_precision) {
  in_full_precision_ = full_precision && has_full_precision();
  gathered_by_ = communicators_->shards.get();
  int64_t bytes = layout_.bytes();
  if (in_full_precision_) {
    gathered_by_ = communicators_->full_precision.get();
    bytes = layout_.numel() * kFloatBytes;
  } else if (has_post_forward_shard_) {
    gathered_by_ = communicators_->post_forward.get();
  }
  slot_ = !gathered_by_->gathers_in_place() || is_copied_to_slot() ? arena.acquire(bytes) : nullptr;
  try {
    fetch_parameters(arena);
    point_parameters_at(gathered_by_->gather(id_, slot_, events_before_gather(arena)));
  } catch (...) {
    if (is_copied_to_slot()) {
      quietly([this] { parameters_->hold(Access::Read); });  // the copy writes the slot
    }
    parameters_->drop();
    give_back_slot(arena);
    in_full_precision_ = false;
    throw;
  }
}

// To their place in the slot, or to where they are kept: from wait_gather() on, if the gathered
// segment lies there, else now.
void FlatSegment::fetch_parameters(const GatherArena& arena) {
  if (!gathers_parameters()) {
    return;
  }
  if (slot_ == nullptr) {
    return parameters_->prefetch();
  }
  const int64_t bytes = layout_.bytes() / layout_.world_size;
  parameters_->prefetch(static_cast<char*>(slot_) + gathered_by_->rank() * bytes,
                        arena.free_from(slot_));
  if (!parameters_->needs_place()) {
    parameters_->hold(Access::Read);
  }
}

// With events the gather need not wait for unrelated work, such as updates of other units. In a
// capture the shards have been written: await_update() came before.
GatherEvents FlatSegment::events_before_gather(const GatherArena& arena) const {
  const bool was_published = written_ && gathered_by_ != communicators_->post_forward.get();
  const c10::Event* const slot_free = slot_ == nullptr ? nullptr : arena.free_from(slot_);
  if (!was_published || slot_free == nullptr) {
    return {};
  }
  if (!gathered_by_->gathers_on_own_stream()) {
    if (!gathered_by_->gathers_in_place()) {
      await_update();  // the gather reads on the current stream
    }
    return {};
  }
  const bool is_captured = capture_of(layout_.device) != 0;
  const c10::Event* const written = is_copied_to_slot() ? parameters_->fetched()
                                    : is_captured       ? slot_free
                                                        : &*written_;
  return {written, slot_free};
}

void FlatSegment::give_back_slot(GatherArena& arena) {
  if (slot_ != nullptr) {
    arena.release(std::exchange(slot_, nullptr));
  }
}

void FlatSegment::wait_gather() {
  if (gathers_parameters() && slot_ == nullptr) {
    parameters_->hold(Access::Read);  // until release()
  }
  gathered_by_->wait_gather(id_);
  if (gathered_by_->gathers_in_place()) {
    // For what was copied from the host; elsewhere the gather has waited for it.
    is_copied_to_slot() ? parameters_->hold(Access::Read) : await_update();
  }
  if (slot_ != nullptr) {
    parameters_->drop();
  }
  point_parameters_at(gathered_, /*is_forbidden=*/false);
}

void FlatSegment::copy_aside() {
  if (slot_ == nullptr) {
    aside_ = flat_tensor(gathered_, layout_.numel(), layout_.dtype, layout_.device).clone();
    gathered_by_->release(id_);
    parameters_->drop();
    point_parameters_at(aside_.mutable_data_ptr(), /*is_forbidden=*/false);
  }
}

void FlatSegment::release(GatherArena& arena) {
  point_parameters_at(nullptr);
  in_full_precision_ = false;
  if (aside_.defined()) {
    aside_.reset();
  } else {
    gathered_by_->release(id_);
  }
  parameters_->drop();
  give_back_slot(arena);
}

void FlatSegment::keep_post_forward_shard() {
  if (communicators_->post_forward == nullptr || has_post_forward_shard_ || in_full_precision_) {
    return;
  }
  Communicator& group = *communicators_->post_forward;
  const int64_t numel = layout_.numel() / group.world_size();
  const at::Tensor whole = flat_tensor(gathered_, layout_.numel(), layout_.dtype, layout_.device);
  group.begin_update(id_);
  flat_tensor(group.travelling_shard(id_), numel, layout_.dtype, layout_.device)
      .copy_(whole.narrow(0, group.rank() * numel, numel));
  group.publish(id_);
  has_post_forward_shard_ = true;
}

bool FlatSegment::has_separate_master() const {
  return layout_.trainable && layout_.dtype != c10::kFloat && master_format_ == Master::Float32;
}

ShardValues FlatSegment::values() const {
  await_update();
  if (has_split_master()) {
    return ShardValues(travelling_, low_)
        .resting(parameters_->usable(), separate_master_->usable());
  }
  Storage& storage = has_separate_master() ? *separate_master_ : *parameters_;
  return ShardValues(master_.defined() ? master_ : travelling_).resting(storage.usable());
}

bool FlatSegment::has_values_in_file() const {
  const bool has_master_in_file =
      separate_master_ != nullptr && separate_master_->file() != nullptr;
  return has_master_in_file || (!has_separate_master() && parameters_->file() != nullptr);
}

void FlatSegment::begin_update() {
  communicators_->shards->begin_update(id_);
  if (has_full_precision()) {
    communicators_->full_precision->begin_update(id_);
  }
}

void FlatSegment::publish() {
  written_ = reached_by_current_stream(layout_.device);
  if (written_) {
    written_on_ = current_stream(layout_.device);
  }
  communicators_->shards->publish(id_);
  if (has_full_precision()) {
    communicators_->full_precision->publish(id_);
  }
}

// What the same stream has written needs no wait; nor does what is kept for a graph, before which
// this is called.
void FlatSegment::await_update() const {
  if (!written_ || capture_of(layout_.device) != 0) {
    return;
  }
  const c10::Stream current = current_stream(layout_.device);
  if (current != *written_on_) {
    written_->block(current);
  }
}

void FlatSegment::write_travelling_from_master() {
  if (has_separate_master()) {
    const auto in_use = parameters_->use(travelling_, /*writes=*/true);
    values().for_each_stretch(/*writes=*/false, [&](int64_t first, const ShardValues& part) {
      shard_math::round_into(part.read().to(travelling_.device()),
                             travelling_.narrow(0, first, part.numel()));
    });
  }
}

}  // namespace sherd::detail
