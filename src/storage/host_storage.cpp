#include "storage/host_storage.h"

#include <utility>

#include "storage/device.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// A tensor in a slot, for kernels that read 16 bytes at a time.
std::int64_t rounded(std::size_t bytes) {
  constexpr std::int64_t kAlignment = 64;
  return (static_cast<std::int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

CopyEngine::CopyEngine(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
    : device_(device),
      ledger_(std::move(ledger)),
      whole_slots_(0, ledger_, device, MemoryKind::OffloadSlot),
      streams_(device) {
  if (!device.is_meta()) {
    side_stream_ = detail::side_stream(device, StreamPriority::Normal);
  }
}

CopyEngine::~CopyEngine() {
  quietly([this] {
    synchronize();
    join();
  });
}

std::int64_t CopyEngine::bytes_in_slot(const std::vector<StoredView>& views) {
  std::int64_t bytes = 0;
  for (const StoredView& one : views) {
    bytes += rounded(one.view.nbytes());
  }
  return bytes;
}

void CopyEngine::reserve(std::int64_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) {
    return;
  }
  synchronize();
  CopyStreams::order(streams_.to_device(), streams_.current());
  CopyStreams::order(streams_.to_host(), streams_.current());
  join();
  slots_ = {};
  slot_bytes_ = 0;  // until there is memory
  for (Slot& slot : slots_) {
    slot.memory = Buffer(slot_bytes, MemoryKind::OffloadSlot, ledger_, device_);
  }
  slot_bytes_ = slot_bytes;
  // Their memory was zeroed by the current stream.
  CopyStreams::order(streams_.current(), streams_.to_device());
}

std::optional<c10::Stream> CopyEngine::side_stream() const {
  if (side_stream_) {
    CopyStreams::order(streams_.current(), *side_stream_);
  }
  return side_stream_;
}

void CopyEngine::join() const {
  if (side_stream_) {
    CopyStreams::order(*side_stream_, streams_.current());
  }
}

void CopyEngine::begin() {
  CopyStreams::order(streams_.to_host(), streams_.to_device());
  if (whole_streams_) {
    CopyStreams::order(whole_streams_->to_host(), streams_.to_device());
  }
  if (std::exchange(written_back_, fetched_) != fetched_) {  // slots that are worked with
    CopyStreams::order(streams_.current(), streams_.to_device());
  }
}

void CopyEngine::fetch(const std::vector<StoredView>& views, std::size_t written) {
  Slot& slot = slots_[fetched_++ % kSlots];
  slot.views.assign(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(written));
  slot.on_device.clear();
  slot.in_use.clear();
  auto* at = static_cast<char*>(slot.memory.data());
  for (const StoredView& one : views) {
    const at::Tensor& view = one.view;
    slot.on_device.push_back(flat_tensor(at, view.numel(), view.scalar_type(), device_));
    at += rounded(view.nbytes());
  }
  is_copying_ = true;
  CopyStreams::order(slot.written, streams_.to_device());
  for (std::size_t i = 0; i < views.size(); ++i) {
    slot.in_use.push_back(
        views[i].storage->copy_to_device(streams_.to_device(), views[i].view, slot.on_device[i]));
  }
  slot.fetched = CopyStreams::reached(streams_.to_device());
}

const std::vector<at::Tensor>& CopyEngine::wait() {
  Slot& slot = slots_[written_back_ % kSlots];
  CopyStreams::order(slot.fetched, streams_.current());
  return slot.on_device;
}

void CopyEngine::write_back() {
  Slot& slot = slots_[written_back_++ % kSlots];
  CopyStreams::order(streams_.current(), streams_.to_host());
  for (std::size_t i = 0; i < slot.views.size(); ++i) {
    slot.views[i].storage->copy_to_host(streams_.to_host(), slot.on_device[i], slot.views[i].view);
  }
  slot.in_use.clear();
  for (const StoredView& written : slot.views) {
    written.storage->write_back(written.view);
  }
  slot.written = CopyStreams::reached(streams_.to_host());
}

void CopyEngine::abandon() {
  for (Slot& slot : slots_) {
    slot.in_use.clear();
  }
}

const CopyStreams& CopyEngine::whole_streams() {
  is_copying_ = true;
  return whole_streams_ ? *whole_streams_ : whole_streams_.emplace(device_);
}

void CopyEngine::synchronize() {
  if (!std::exchange(is_copying_, false)) {
    return;
  }
  streams_.synchronize();
  if (whole_streams_) {
    whole_streams_->synchronize();
  }
}

HostStorage::HostStorage(std::shared_ptr<CopyEngine> copies, std::unique_ptr<Storage> host,
                         bool has_slot)
    : copies_(std::move(copies)), host_(std::move(host)), has_slot_(has_slot) {
  tensor_ = host_->tensor();
}

HostStorage::~HostStorage() {
  quietly([this] { drop(); });
  quietly([this] { copies_->synchronize(); });
}

std::shared_ptr<void> HostStorage::use(const at::Tensor& view, bool writes) {
  copies_->synchronize();
  return host_->use(view, writes);
}

void HostStorage::copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                               const at::Tensor& view) {
  host_->copy_to_host(stream, from, view);
  written_ = CopyStreams::reached(stream);
}

void HostStorage::await(const std::optional<c10::Event>& event) const {
  CopyStreams::order(event, current_stream(copies_->device()));
}

at::Tensor HostStorage::all_at(void* place) const {
  return flat_tensor(place, tensor_.numel(), tensor_.scalar_type(), copies_->device());
}

void HostStorage::copy_all_to(void* place, const c10::Event* free) {
  const CopyStreams& streams = copies_->whole_streams();
  CopyStreams::order(written_, streams.to_device());
  if (free != nullptr) {
    free->block(streams.to_device());
  }
  static_cast<void>(host_->copy_to_device(streams.to_device(), tensor_, all_at(place)));
  fetched_ = CopyStreams::reached(streams.to_device());
}

// Returns whether the contents are in it or on their way: they may come back before they have left.
bool HostStorage::take_slot() {
  if (place_ == Place::Leaving) {
    copies_->leaving_ = nullptr;
    await(written_);  // which reads the slot
    place_ = Place::Arriving;
  }
  if (place_ != Place::Host) {
    return true;
  }
  GatherArena& slots = copies_->whole_slots();
  slot_ = slots.acquire(static_cast<std::int64_t>(tensor_.nbytes()));
  if (const c10::Event* const free = slots.free_from(slot_)) {
    free->block(current_stream(copies_->device()));
  }
  on_device_ = all_at(slot_);
  place_ = Place::Arriving;
  return false;
}

void HostStorage::give_slot_back(std::optional<c10::Event> free_from) {
  copies_->whole_slots().release(std::exchange(slot_, nullptr), std::move(free_from));
  place_ = Place::Host;
}

void HostStorage::prefetch(void* place, const c10::Event* free) {
  if (place != nullptr) {
    return copy_all_to(place, free);
  }
  if (take_slot()) {
    return;
  }
  const auto slot_free = reached_by_current_stream(copies_->device());
  try {
    copy_all_to(slot_, slot_free ? &*slot_free : nullptr);
  } catch (...) {
    give_slot_back(reached_by_current_stream(copies_->device()));
    throw;
  }
}

void HostStorage::hold(Access access) {
  if (!has_slot_) {
    check_invariant(access == Access::Read, "storage without slots is held to be written");
    return await(fetched_);
  }
  if (access != Access::Overwrite) {
    prefetch(nullptr, nullptr);
    await(fetched_);
  } else if (take_slot()) {
    await(fetched_);
  }
  place_ = Place::Held;
}

void HostStorage::write_back() {
  if (!is_held()) {
    return;
  }
  if (copies_->leaving_ != nullptr) {
    copies_->leaving_->let_go();
  }
  const CopyStreams& streams = copies_->whole_streams();
  CopyStreams::order(streams.current(), streams.to_host());
  copy_to_host(streams.to_host(), on_device_, tensor_);
  write_back(tensor_);
  place_ = Place::Leaving;
  copies_->leaving_ = this;
}

// The slot is free after the copy; no later copy was queued.
void HostStorage::let_go() {
  copies_->leaving_ = nullptr;
  give_slot_back(CopyStreams::reached(copies_->whole_streams().to_host()));
}

void HostStorage::drop() {
  if (place_ == Place::Leaving) {
    return let_go();
  }
  if (place_ != Place::Host) {
    await(fetched_);
    give_slot_back(reached_by_current_stream(copies_->device()));
  }
}

std::unique_ptr<Storage> pinned_storage(std::int64_t numel, c10::ScalarType dtype, MemoryKind kind,
                                        const std::shared_ptr<MemoryLedger>& ledger,
                                        c10::Device device) {
  const auto memory = std::make_shared<PinnedBuffer>(
      numel * static_cast<std::int64_t>(c10::elementSize(dtype)), kind, ledger, device);
  return std::make_unique<ResidentStorage>(
      flat_tensor(memory->data(), numel, dtype, memory->device()), memory);
}

}  // namespace sherd::detail
