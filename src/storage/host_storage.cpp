#include "storage/host_storage.h"

#include <exception>
#include <utility>

#include "storage/movable_storage.h"
#include "storage/own_work.h"
#include "storage/streams.h"

namespace sherd::detail {

HostSlots::~HostSlots() {
  try {
    arena_.set_limit(0);
    arena_.trim();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
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
  try {
    drop();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
  try {
    copies_->synchronize();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
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
  slot_ = slots_->arena_.acquire(static_cast<std::int64_t>(tensor_.nbytes()));
  slots_->arena_.await_free(slot_);
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
    slots_->arena_.release(std::exchange(slot_, nullptr));
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
  slots_->arena_.release(std::exchange(slot_, nullptr), copies_->whole_written_back());
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
  slots_->arena_.release(std::exchange(slot_, nullptr));
  place_ = Place::Host;
}

}  // namespace sherd::detail
