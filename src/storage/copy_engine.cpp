#include "storage/copy_engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "storage/movable_storage.h"
#include "storage/streams.h"

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
  try {
    synchronize();
    join();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
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

}  // namespace sherd::detail
