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
      streams_(device.is_meta() ? nullptr : std::make_unique<CopyStreams>(device)) {
  if (streams_ != nullptr) {
    side_stream_ = detail::side_stream(device, StreamPriority::Normal);
  }
}

CopyEngine::~CopyEngine() {
  quietly([this] {
    synchronize();
    join();
  });
  whole_streams_.reset();
  streams_.reset();  // before the slots go
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
  if (streams_ != nullptr) {
    CopyStreams::order(streams_->to_device(), streams_->current());
    CopyStreams::order(streams_->to_host(), streams_->current());
    join();
  }
  slots_.clear();
  slot_bytes_ = slot_bytes;
  for (std::int64_t i = 0; i < kSlots; ++i) {
    slots_.emplace_back(device_.type()).memory =
        Buffer(slot_bytes, MemoryKind::OffloadSlot, ledger_, device_);
  }
  next_ = 0;
  if (streams_ != nullptr) {  // their memory was zeroed by the current stream
    CopyStreams::order(streams_->current(), streams_->to_device());
  }
}

std::optional<c10::Stream> CopyEngine::side_stream() const {
  if (side_stream_) {
    CopyStreams::order(streams_->current(), *side_stream_);
  }
  return side_stream_;
}

void CopyEngine::join() const {
  if (side_stream_) {
    CopyStreams::order(*side_stream_, streams_->current());
  }
}

void CopyEngine::begin() {
  const bool was_left = !std::exchange(fetched_, {}).empty();
  if (streams_ == nullptr) {
    return;
  }
  CopyStreams::order(streams_->to_host(), streams_->to_device());
  if (whole_streams_ != nullptr) {
    CopyStreams::order(whole_streams_->to_host(), streams_->to_device());
  }
  if (was_left) {  // slots that are worked with
    CopyStreams::order(streams_->current(), streams_->to_device());
  }
}

void CopyEngine::fetch(const std::vector<StoredView>& views, std::size_t written) {
  Slot& slot = slots_[next_++ % slots_.size()];
  slot.views.assign(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(written));
  slot.on_device.clear();
  slot.in_use.clear();
  auto* at = static_cast<char*>(slot.memory.data());
  for (const StoredView& one : views) {
    const at::Tensor& view = one.view;
    slot.on_device.push_back(flat_tensor(at, view.numel(), view.scalar_type(), device_));
    at += rounded(view.nbytes());
  }
  fetched_.push_back(&slot);
  if (streams_ == nullptr) {
    return;
  }
  is_copying_ = true;
  slot.written.block(streams_->to_device());
  for (std::size_t i = 0; i < views.size(); ++i) {
    slot.in_use.push_back(
        views[i].storage->copy_to_device(streams_->to_device(), views[i].view, slot.on_device[i]));
  }
  slot.fetched.record(streams_->to_device());
}

const std::vector<at::Tensor>& CopyEngine::wait() {
  Slot& slot = *fetched_.front();
  if (streams_ != nullptr) {
    slot.fetched.block(streams_->current());
  }
  return slot.on_device;
}

void CopyEngine::write_back() {
  Slot& slot = *fetched_.front();
  fetched_.pop_front();
  if (streams_ == nullptr) {
    return;
  }
  CopyStreams::order(streams_->current(), streams_->to_host());
  for (std::size_t i = 0; i < slot.views.size(); ++i) {
    slot.views[i].storage->copy_to_host(streams_->to_host(), slot.on_device[i], slot.views[i].view);
  }
  slot.in_use.clear();
  for (const StoredView& written : slot.views) {
    written.storage->write_back(written.view);
  }
  slot.written.record(streams_->to_host());
}

void CopyEngine::abandon() {
  for (Slot& slot : slots_) {
    slot.in_use.clear();
  }
}

std::optional<c10::Event> CopyEngine::written_back() const {
  return streams_ == nullptr ? std::nullopt
                             : std::optional(CopyStreams::reached(streams_->to_host()));
}

std::optional<c10::Event> CopyEngine::whole_written_back() const {
  return whole_streams_ == nullptr ? std::nullopt
                                   : std::optional(CopyStreams::reached(whole_streams_->to_host()));
}

const CopyStreams* CopyEngine::whole_streams() {
  if (streams_ == nullptr) {
    return nullptr;
  }
  if (whole_streams_ == nullptr) {
    whole_streams_ = std::make_unique<CopyStreams>(device_);
  }
  is_copying_ = true;
  return whole_streams_.get();
}

void CopyEngine::synchronize() {
  if (!std::exchange(is_copying_, false)) {
    return;
  }
  streams_->synchronize();
  if (whole_streams_ != nullptr) {
    whole_streams_->synchronize();
  }
}

HostSlots::~HostSlots() {
  set_limit(0);
  quietly([this] { trim(); });
}

HostStorage::HostStorage(std::shared_ptr<CopyEngine> copies, std::shared_ptr<FileStore> file,
                         std::shared_ptr<HostSlots> slots, std::int64_t numel,
                         c10::ScalarType dtype, MemoryKind kind)
    : copies_(std::move(copies)), slots_(std::move(slots)) {
  if (file != nullptr) {
    file_ = std::make_unique<FileStorage>(std::move(file), numel, dtype);
    tensor_ = file_->tensor();
    return;
  }
  pinned_.emplace(numel * static_cast<std::int64_t>(c10::elementSize(dtype)), kind,
                  copies_->ledger(), copies_->device());
  tensor_ = flat_tensor(pinned_->data(), numel, dtype, pinned_->device());
}

HostStorage::~HostStorage() {
  quietly([this] { drop(); });
  quietly([this] { copies_->synchronize(); });
}

std::shared_ptr<void> HostStorage::use(const at::Tensor& view, bool writes) {
  copies_->synchronize();
  return file_ == nullptr ? nullptr : file_->use(view, writes);
}

void HostStorage::read_ahead(const at::Tensor& view) {
  if (file_ != nullptr) {
    file_->read_ahead(view);
  }
}

void HostStorage::write_back(const at::Tensor& view) {
  if (file_ != nullptr) {
    file_->write_back(view);
  }
}

std::shared_ptr<void> HostStorage::copy_to_device(const c10::Stream& stream, const at::Tensor& view,
                                                  const at::Tensor& to) {
  auto in_use = file_ == nullptr ? nullptr : file_->use(view, /*writes=*/false);
  CopyStreams::copy(stream, view, to);
  if (file_ != nullptr) {
    stream.synchronize();
  }
  return in_use;
}

void HostStorage::copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                               const at::Tensor& view) {
  std::shared_ptr<void> in_use;
  if (file_ != nullptr) {
    in_use = view.numel() == tensor_.numel() ? file_->overwrite() : file_->use(view, true);
  }
  CopyStreams::copy(stream, from, view);
  if (file_ != nullptr) {
    stream.synchronize();
  }
}

void HostStorage::await(const std::optional<c10::Event>& event) const {
  if (event) {
    event->block(copies_->whole_streams()->current());
  }
}

void HostStorage::copy_all_to(void* place, const c10::Event* free) {
  const CopyStreams* const streams = copies_->whole_streams();
  if (streams == nullptr) {
    return;
  }
  if (written_) {
    written_->block(streams->to_device());
  }
  if (free != nullptr) {
    free->block(streams->to_device());
  }
  static_cast<void>(copy_to_device(
      streams->to_device(), tensor_,
      flat_tensor(place, tensor_.numel(), tensor_.scalar_type(), copies_->device())));
  fetched_ = CopyStreams::reached(streams->to_device());
}

// Returns whether the contents are in it or on their way: they may come back before they have left.
bool HostStorage::take_slot() {
  if (place_ == Place::Leaving) {
    slots_->leaving_ = nullptr;
    await(written_);  // which reads the slot
    place_ = Place::Arriving;
  }
  if (place_ != Place::Host) {
    return true;
  }
  slot_ = slots_->acquire(static_cast<std::int64_t>(tensor_.nbytes()));
  slots_->await_free(slot_);
  on_device_ = flat_tensor(slot_, tensor_.numel(), tensor_.scalar_type(), copies_->device());
  place_ = Place::Arriving;
  return false;
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
    slots_->release(std::exchange(slot_, nullptr));
    place_ = Place::Host;
    throw;
  }
}

void HostStorage::hold(Access access) {
  if (slots_ == nullptr) {
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
  if (slots_->leaving_ != nullptr) {
    slots_->leaving_->let_go();
  }
  if (const CopyStreams* const streams = copies_->whole_streams()) {
    CopyStreams::order(streams->current(), streams->to_host());
    copy_to_host(streams->to_host(), on_device_, tensor_);
    write_back(tensor_);
    written_ = CopyStreams::reached(streams->to_host());
  }
  place_ = Place::Leaving;
  slots_->leaving_ = this;
}

// The slot is free after the copy; no later copy was queued.
void HostStorage::let_go() {
  slots_->leaving_ = nullptr;
  slots_->release(std::exchange(slot_, nullptr), copies_->whole_written_back());
  place_ = Place::Host;
}

void HostStorage::drop() {
  if (place_ == Place::Host) {
    return;
  }
  if (place_ == Place::Leaving) {
    return let_go();
  }
  await(fetched_);
  slots_->release(std::exchange(slot_, nullptr));
  place_ = Place::Host;
}

}  // namespace sherd::detail
