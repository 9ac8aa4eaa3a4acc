#include "storage/piece_in_slot.h"

#include <exception>
#include <utility>

#include "storage/movable_storage.h"
#include "storage/stream_event.h"

namespace sherd::detail {

PieceSlots::~PieceSlots() {
  try {
    arena_.set_limit(0);
    arena_.trim();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
}

PieceInSlot::PieceInSlot(std::shared_ptr<HostStore> store, std::shared_ptr<PieceSlots> slots,
                         std::int64_t numel, c10::ScalarType dtype, MemoryKind kind,
                         std::shared_ptr<OffloadStore> disk)
    : piece_(std::move(store), numel, dtype, kind, std::move(disk)), slots_(std::move(slots)) {}

PieceInSlot::~PieceInSlot() {
  try {
    drop();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
}

// Whether what it holds is there, or on its way: it may come back before it has left.
bool PieceInSlot::take_slot() {
  if (place_ == Place::Leaving) {
    slots_->leaving_ = nullptr;
    piece_.await_write();  // which reads the slot
    place_ = Place::Arriving;
  }
  if (place_ != Place::Host) {
    return true;
  }
  const at::Tensor& host = piece_.on_host();
  slot_ = slots_->arena_.acquire(static_cast<std::int64_t>(host.nbytes()));
  slots_->arena_.await_free(slot_);
  on_device_ = flat_tensor(slot_, host.numel(), host.scalar_type(), piece_.store().device());
  place_ = Place::Arriving;
  return false;
}

void PieceInSlot::fetch() {
  if (!take_slot()) {
    const auto free = reached_by_current_stream(piece_.store().device());
    try {
      piece_.fetch(slot_, free ? &*free : nullptr);
    } catch (...) {
      slots_->arena_.release(std::exchange(slot_, nullptr));
      place_ = Place::Host;
      throw;
    }
  }
}

void PieceInSlot::hold() {
  fetch();
  piece_.await();
  place_ = Place::Held;
}

void PieceInSlot::hold_anew() {
  if (take_slot()) {
    piece_.await();
  }
  place_ = Place::Held;
}

void PieceInSlot::rest() {
  if (slots_->leaving_ != nullptr) {
    slots_->leaving_->let_go();
  }
  piece_.write_back(slot_);
  place_ = Place::Leaving;
  slots_->leaving_ = this;
}

// Its slot is free when it has been copied, which nothing has been behind it.
void PieceInSlot::let_go() {
  slots_->leaving_ = nullptr;
  slots_->arena_.release(std::exchange(slot_, nullptr), piece_.store().pieces_written_back());
  place_ = Place::Host;
}

void PieceInSlot::drop() {
  if (place_ == Place::Host) {
    return;
  }
  if (place_ == Place::Leaving) {
    return let_go();
  }
  piece_.await();
  slots_->arena_.release(std::exchange(slot_, nullptr));
  place_ = Place::Host;
}

std::shared_ptr<void> PieceInSlot::use() {
  if (is_held()) {
    return nullptr;
  }
  hold();
  return {this, [](PieceInSlot* piece) {
            try {
              piece->drop();
            } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as each later call
            }                                  // to the device says
          }};
}

}  // namespace sherd::detail
