#include "storage/host_store.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "storage/host_home.h"
#include "storage/movable_storage.h"
#include "storage/side_stream.h"

namespace sherd::detail {

namespace {

// A tensor in a slot, for kernels that read 16 bytes at a time.
std::int64_t rounded(std::size_t bytes) {
  constexpr std::int64_t kAlignment = 64;
  return (static_cast<std::int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

HostStore::HostStore(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
    : device_(device),
      ledger_(std::move(ledger)),
      streams_(device.is_meta() ? nullptr : std::make_unique<CopyStreams>(device)) {
  if (streams_ != nullptr) {
    beside_ = side_stream(device, StreamPriority::Normal);
  }
}

HostStore::~HostStore() {
  try {
    settle();
    join();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
  piece_streams_.reset();
  streams_.reset();  // before the slots go
}

std::int64_t HostStore::bytes_in_slot(const std::vector<OnHost>& tensors) {
  std::int64_t bytes = 0;
  for (const OnHost& tensor : tensors) {
    bytes += rounded(tensor.view.nbytes());
  }
  return bytes;
}

void HostStore::reserve(std::int64_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) {
    return;
  }
  settle();
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

std::optional<c10::Stream> HostStore::stream_beside() const {
  if (beside_) {
    CopyStreams::order(streams_->current(), *beside_);
  }
  return beside_;
}

void HostStore::join() const {
  if (beside_) {
    CopyStreams::order(*beside_, streams_->current());
  }
}

void HostStore::begin() {
  const bool was_left = !std::exchange(fetched_, {}).empty();
  if (streams_ == nullptr) {
    return;
  }
  CopyStreams::order(streams_->to_host(), streams_->to_device());
  if (piece_streams_ != nullptr) {
    CopyStreams::order(piece_streams_->to_host(), streams_->to_device());
  }
  if (was_left) {  // slots that are worked with
    CopyStreams::order(streams_->current(), streams_->to_device());
  }
}

void HostStore::fetch(const std::vector<OnHost>& tensors, std::size_t written) {
  Slot& slot = slots_[next_++ % slots_.size()];
  slot.on_host.assign(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(written));
  slot.on_device.clear();
  slot.in_use.clear();
  auto* at = static_cast<char*>(slot.memory.data());
  for (const OnHost& tensor : tensors) {
    const at::Tensor& view = tensor.view;
    slot.on_device.push_back(flat_tensor(at, view.numel(), view.scalar_type(), device_));
    at += rounded(view.nbytes());
  }
  fetched_.push_back(&slot);
  if (streams_ == nullptr) {
    return;
  }
  is_copying_ = true;
  slot.written.block(streams_->to_device());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    slot.in_use.push_back(
        tensors[i].home->copy_to_device(streams_->to_device(), tensors[i].view, slot.on_device[i]));
  }
  slot.fetched.record(streams_->to_device());
}

const std::vector<at::Tensor>& HostStore::use() {
  Slot& slot = *fetched_.front();
  if (streams_ != nullptr) {
    slot.fetched.block(streams_->current());
  }
  return slot.on_device;
}

void HostStore::write_back() {
  Slot& slot = *fetched_.front();
  fetched_.pop_front();
  if (streams_ == nullptr) {
    return;
  }
  CopyStreams::order(streams_->current(), streams_->to_host());
  for (std::size_t i = 0; i < slot.on_host.size(); ++i) {
    slot.on_host[i].home->copy_to_host(streams_->to_host(), slot.on_device[i],
                                       slot.on_host[i].view);
  }
  slot.in_use.clear();
  for (const OnHost& written : slot.on_host) {
    written.home->write_back(written.view);
  }
  slot.written.record(streams_->to_host());
}

void HostStore::leave() {
  for (Slot& slot : slots_) {
    slot.in_use.clear();
  }
}

std::optional<c10::Event> HostStore::written_back() const {
  return streams_ == nullptr ? std::nullopt
                             : std::optional(CopyStreams::reached(streams_->to_host()));
}

std::optional<c10::Event> HostStore::pieces_written_back() const {
  return piece_streams_ == nullptr ? std::nullopt
                                   : std::optional(CopyStreams::reached(piece_streams_->to_host()));
}

const CopyStreams* HostStore::piece_streams() {
  if (streams_ == nullptr) {
    return nullptr;
  }
  if (piece_streams_ == nullptr) {
    piece_streams_ = std::make_unique<CopyStreams>(device_);
  }
  is_copying_ = true;
  return piece_streams_.get();
}

void HostStore::settle() {
  if (!std::exchange(is_copying_, false)) {
    return;
  }
  streams_->synchronize();
  if (piece_streams_ != nullptr) {
    piece_streams_->synchronize();
  }
}

}  // namespace sherd::detail
