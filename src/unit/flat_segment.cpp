#include "unit/flat_segment.h"

#include <array>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/device_graph.h"
#include "storage/movable_storage.h"
#include "storage/stream_event.h"

namespace sherd::detail {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

c10::Stream stream_of_caller(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

FlatSegment::FlatSegment(SegmentLayout layout, std::vector<std::vector<int64_t>> shapes,
                         Master master)
    : layout_(std::move(layout)),
      shapes_(std::move(shapes)),
      master_format_(master),
      forbidden_(layout_.bytes()),
      storage_(movable_storage(layout_.bytes(), layout_.device)),
      wide_storage_(movable_storage(layout_.numel() * kFloatBytes, layout_.device)) {
  if (layout_.trainable) {
    gradients_ = std::make_unique<SegmentGradients>(layout_, shapes_);
  }
  point_parameters_at(nullptr);
}

FlatSegment::~FlatSegment() {
  // Parameters may outlive the sharded model; using them is then an error of LibTorch.
  point_at(*storage_, nullptr);
  point_at(*wide_storage_, nullptr);
}

SegmentSpec FlatSegment::spec(const std::string& unit, bool is_root) const {
  SegmentSpec spec{unit, layout_.shard_numel, layout_.dtype, layout_.trainable, is_root};
  spec.reduce_dtype = layout_.reduce_dtype;
  spec.piece = parameter_home_ == nullptr ? nullptr : parameter_home_->address();
  spec.piece_in_slot = parameters_on_host_ != nullptr;
  return spec;
}

SegmentSpec FlatSegment::replica_spec(const std::string& unit, bool is_root, int replicas) const {
  const int64_t numel = layout_.trainable ? layout_.shard_numel / replicas : 0;
  SegmentSpec spec{unit, numel, layout_.reduce_dtype, layout_.trainable, is_root};
  spec.shard_kind = MemoryKind::GradientShard;
  spec.reduce_dtype = layout_.reduce_dtype;
  return spec;
}

SegmentSpec FlatSegment::post_forward_spec(const std::string& unit, int size, bool is_kept) const {
  const int64_t numel = is_kept ? layout_.numel() / size : 0;
  return {unit, numel, layout_.dtype, false, false, MemoryKind::PostForwardShard};
}

SegmentSpec FlatSegment::full_precision_spec(const std::string& unit) const {
  const int64_t numel = has_separate_master() ? layout_.shard_numel : 0;
  return {unit, numel, c10::ScalarType::Float, false, false, MemoryKind::MasterShard};
}

void FlatSegment::attach(const SegmentCommunicators& communicators, Communicator::Segment id,
                         const std::shared_ptr<MemoryLedger>& ledger,
                         const std::shared_ptr<SpareShards>& spare_shards,
                         const OffloadStores& offload) {
  communicators_ = communicators;
  id_ = id;
  const int64_t numel = layout_.shard_numel;
  travelling_ = view_travelling();
  if (!layout_.trainable) {
    return;
  }
  gradients_->attach(communicators, id, ledger, spare_shards, offload);
  if (has_split_master()) {
    low_ = allocate_master(c10::kShort, ledger, offload);
  } else if (!has_separate_master()) {
    master_ = layout_.dtype == c10::kFloat ? travelling_ : at::Tensor();
  } else if (has_full_precision()) {
    master_ = flat_tensor(communicators.full_precision->travelling_shard(id), numel, c10::kFloat,
                          layout_.device);
  } else {
    master_ = allocate_master(c10::kFloat, ledger, offload);
  }
}

// A view of the shard in its storage, or in the communicator's memory.
at::Tensor FlatSegment::view_travelling() const {
  Communicator& shards = *communicators_.shards;
  void* const piece = shards.travelling_shard(id_);
  const auto refuse = [&](const std::string& rest, const std::string& instead) {
    throw Error(ExitCode::Usage, "[fully_shard] parameters cannot be stored on " + rest +
                                     " where ranks exchange by " + shards.transport() +
                                     ", which keeps them in memory of its own: " + instead);
  };
  if (parameters_on_host_ != nullptr) {
    if (piece != nullptr) {
      refuse(parameters_on_host_->home().disk() == nullptr
                 ? "the host (Offload::parameters_on_host)"
                 : "a disk (Offload::parameter_folder)",
             "give each rank a device of its own, which exchanges over NCCL, or leave them there.");
    }
    return parameters_on_host_->on_host();
  }
  if (parameter_home_ == nullptr) {
    return flat_tensor(piece, layout_.shard_numel, layout_.dtype, layout_.device);
  }
  if (piece != parameter_home_->address()) {
    refuse("a disk (Offload::parameter_folder)",
           "use one rank, or processes with WorldOptions::transport = Transport::ProcessGroups.");
  }
  return parameter_home_->view(0, layout_.shard_numel, layout_.dtype);
}

void FlatSegment::rest_parameters_in(const std::shared_ptr<OffloadStore>& store) {
  const auto element = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  parameter_home_ = std::make_unique<SegmentHome>(store, layout_.shard_numel * element);
}

void FlatSegment::rest_parameters_on(const std::shared_ptr<HostStore>& host,
                                     const std::shared_ptr<OffloadStore>& disk) {
  parameters_on_host_ = std::make_unique<HostPiece>(host, layout_.shard_numel, layout_.dtype,
                                                    MemoryKind::TravellingShard, disk);
}

// Empty if it is resident.
ShardValues::UseView FlatSegment::use_of_travelling() const {
  return parameters_on_host_ != nullptr ? parameters_on_host_->home().usable()
         : parameter_home_ != nullptr   ? parameter_home_->usable()
                                        : nullptr;
}

ShardValues::UseView FlatSegment::use_of_master() const {
  return master_on_host_ != nullptr ? master_on_host_->usable()
         : master_home_ != nullptr  ? master_home_->usable()
                                    : nullptr;
}

std::shared_ptr<void> FlatSegment::use_travelling(bool writes) const {
  const ShardValues::UseView use = use_of_travelling();
  return use ? use(travelling_, writes) : nullptr;
}

// Masters, as far as the shard in param_dtype does not hold them: [shard_numel].
at::Tensor FlatSegment::allocate_master(c10::ScalarType dtype,
                                        const std::shared_ptr<MemoryLedger>& ledger,
                                        const OffloadStores& offload) {
  const int64_t bytes = layout_.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (offload.optimizer_on_host) {
    master_on_host_ = std::make_unique<HostHome>(offload.on_host, bytes, MemoryKind::MasterShard,
                                                 offload.optimizer);
    return master_on_host_->view(0, layout_.shard_numel, dtype);
  }
  if (offload.optimizer != nullptr) {
    master_home_ = std::make_unique<SegmentHome>(offload.optimizer, bytes);
    return master_home_->view(0, layout_.shard_numel, dtype);
  }
  master_buffer_ = Buffer(bytes, MemoryKind::MasterShard, ledger, layout_.device);
  return flat_tensor(master_buffer_.data(), layout_.shard_numel, dtype, layout_.device);
}

at::Tensor FlatSegment::parameter_view(size_t place) const {
  return view_of(in_full_precision_ ? wide_storage_ : storage_, layout_.places[place].offset,
                 shapes_[place], in_full_precision_ ? c10::kFloat : layout_.dtype);
}

void FlatSegment::name_parameter(size_t place, const std::string& parameter,
                                 const std::string& unit) {
  const ParameterPlace& p = layout_.places[place];
  const auto element = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  forbidden_.name_parameter((p.offset + p.numel) * element, parameter, unit);
  forbidden_storages_.push_back(
      forbidden_storage(layout_.bytes(), layout_.device, explain_use(parameter, unit)));
}

c10::Storage FlatSegment::storage_of(size_t place) const {
  if (gathered_ == nullptr) {
    return forbidden_storages_[place];
  }
  return in_full_precision_ ? wide_storage_ : storage_;
}

void FlatSegment::point_parameters_at(void* gathered) {
  gathered_ = gathered;
  if (in_full_precision_) {
    point_at(*wide_storage_, gathered);
  } else {
    void* nowhere = layout_.device.is_cpu() ? forbidden_.data() : nullptr;
    point_at(*storage_, gathered == nullptr ? nowhere : gathered);
  }
}

void FlatSegment::gather(GatherArena& arena, bool full_precision) {
  in_full_precision_ = full_precision && has_full_precision();
  gathered_by_ = communicators_.shards;
  int64_t bytes = layout_.bytes();
  if (in_full_precision_) {
    gathered_by_ = communicators_.full_precision;
    bytes = layout_.numel() * kFloatBytes;
  } else if (has_post_forward_shard_) {
    gathered_by_ = communicators_.post_forward;
  }
  const bool takes_slot = !gathered_by_->gathers_in_place() || gathers_from_host();
  slot_ = takes_slot ? arena.acquire(bytes) : nullptr;
  try {
    if (gathers_from_host()) {
      fetch_piece(arena);
    } else if (gathers_from_home() && slot_ == nullptr) {
      parameter_home_->fetch(travelling_);  // used from wait_gather() on
    } else if (gathers_from_home()) {
      gathered_use_ = use_travelling(/*writes=*/false);
    }
    point_parameters_at(gathered_by_->gather(id_, slot_, events_before_gather(arena)));
  } catch (...) {
    gathered_use_.reset();
    give_back_slot(arena);
    in_full_precision_ = false;
    throw;
  }
}

// To its place in the slot.
void FlatSegment::fetch_piece(const GatherArena& arena) {
  const int64_t bytes = layout_.bytes() / layout_.world_size;
  parameters_on_host_->fetch(static_cast<char*>(slot_) + gathered_by_->rank() * bytes,
                             arena.free_from(slot_));
}

// With events the gather need not wait for unrelated work, such as updates of other units. In a
// capture the shards have been written: await_update() came before.
GatherEvents FlatSegment::events_before_gather(const GatherArena& arena) const {
  const bool was_published = written_ && gathered_by_ != communicators_.post_forward;
  const c10::Event* const slot_free = slot_ == nullptr ? nullptr : arena.free_from(slot_);
  if (!was_published || slot_free == nullptr || parameter_home_ != nullptr) {
    return {};
  }
  if (!gathered_by_->gathers_on_own_stream()) {
    if (!gathered_by_->gathers_in_place()) {
      await_update();  // the gather reads on the current stream
    }
    return {};
  }
  const bool is_captured = capture_of(layout_.device) != 0;
  const c10::Event* const written = gathers_from_host() ? parameters_on_host_->fetched()
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
  const bool is_read_in_place = gathers_from_home() && slot_ == nullptr;
  if (is_read_in_place) {
    gathered_use_ = use_travelling(/*writes=*/false);
  }
  gathered_by_->wait_gather(id_);
  if (gathered_by_->gathers_in_place()) {
    // Of what was copied from the host: elsewhere the gather has waited for that.
    gathers_from_host() ? parameters_on_host_->await() : await_update();
  }
  if (!is_read_in_place) {
    gathered_use_.reset();
  }
}

void FlatSegment::copy_aside() {
  if (slot_ == nullptr) {
    aside_ = flat_tensor(gathered_, layout_.numel(), layout_.dtype, layout_.device).clone();
    gathered_by_->release(id_);
    gathered_use_.reset();
    point_parameters_at(aside_.mutable_data_ptr());
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
  gathered_use_.reset();
  give_back_slot(arena);
}

void FlatSegment::keep_post_forward_shard() {
  if (communicators_.post_forward == nullptr || has_post_forward_shard_ || in_full_precision_) {
    return;
  }
  Communicator& group = *communicators_.post_forward;
  const int64_t numel = layout_.numel() / group.world_size();
  const at::Tensor whole = flat_tensor(gathered_, layout_.numel(), layout_.dtype, layout_.device);
  group.begin_update(id_);
  flat_tensor(group.travelling_shard(id_), numel, layout_.dtype, layout_.device)
      .copy_(whole.narrow(0, group.rank() * numel, numel));
  group.publish(id_);
  has_post_forward_shard_ = true;
}

bool FlatSegment::has_separate_master() const {
  return layout_.trainable && layout_.dtype != c10::kFloat && master_format() == Master::Float32;
}

Master FlatSegment::master_format() const {
  const bool is_bf16 = layout_.trainable && layout_.dtype == c10::kBFloat16;
  return is_bf16 ? master_format_ : Master::Float32;
}

ShardValues FlatSegment::values() const {
  await_update();
  const ShardValues values = has_split_master()  ? ShardValues(travelling_, low_)
                             : master_.defined() ? ShardValues(master_)
                                                 : ShardValues(travelling_);
  const ShardValues::UseView of_tensor =
      has_separate_master() ? use_of_master() : use_of_travelling();
  const ShardValues::UseView of_low = has_split_master() ? use_of_master() : nullptr;
  if (!of_tensor && !of_low) {
    return values;
  }
  return values.resting(ShardValues::Use([of_tensor, of_low](const ShardValues& part, bool writes) {
    auto uses = std::make_shared<std::array<std::shared_ptr<void>, 2>>();
    (*uses)[0] = of_tensor ? of_tensor(part.tensor(), writes) : nullptr;
    (*uses)[1] = of_low ? of_low(part.low(), writes) : nullptr;
    return uses;
  }));
}

bool FlatSegment::has_values_on_disk() const {
  const auto is_on_disk = [](const SegmentHome* home, const HostHome* host) {
    return home != nullptr || (host != nullptr && host->disk() != nullptr);
  };
  return is_on_disk(master_home(), master_on_host()) ||
         (!has_separate_master() && is_on_disk(parameter_home(), parameters_on_host()));
}

void FlatSegment::begin_update() {
  communicators_.shards->begin_update(id_);
  if (has_full_precision()) {
    communicators_.full_precision->begin_update(id_);
  }
}

void FlatSegment::publish() {
  written_ = reached_by_current_stream(layout_.device);
  if (written_) {
    written_on_ = stream_of_caller(layout_.device);
  }
  if (parameters_on_host_ != nullptr) {
    parameters_on_host_->was_written_back();
  }
  communicators_.shards->publish(id_);
  if (has_full_precision()) {
    communicators_.full_precision->publish(id_);
  }
}

// What the same stream has written needs no wait; nor does what is kept for a graph, before which
// this is called.
void FlatSegment::await_update() const {
  if (!written_ || capture_of(layout_.device) != 0) {
    return;
  }
  const c10::Stream current = stream_of_caller(layout_.device);
  if (current != *written_on_) {
    written_->block(current);
  }
}

void FlatSegment::write_travelling_from_master() {
  if (has_separate_master()) {
    const auto in_use = use_travelling(/*writes=*/true);
    values().for_each_stretch(/*writes=*/false, [&](int64_t first, const ShardValues& part) {
      shard_math::round_into(part.read().to(travelling_.device()),
                             travelling_.narrow(0, first, part.numel()));
    });
  }
}

}  // namespace sherd::detail
