#pragma once
// A piece on the host that has a slot of the device while it is worked with.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "storage/gather_arena.h"
#include "storage/host_piece.h"

namespace sherd::detail {

class PieceInSlot;

/// The slots of all such pieces. The one that leaves keeps its slot until the next one leaves, so
/// that what is computed meanwhile does not wait for the copy.
class PieceSlots {
 public:
  PieceSlots(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
      : arena_(0, std::move(ledger), device, MemoryKind::OffloadSlot) {}
  /// What the current stream does from then on comes after all copies.
  ~PieceSlots();
  PieceSlots(const PieceSlots&) = delete;
  PieceSlots& operator=(const PieceSlots&) = delete;
  /// Of all slots, unless more than that is in use at once.
  void set_limit(std::int64_t bytes) { arena_.set_limit(bytes); }

 private:
  friend class PieceInSlot;
  GatherArena arena_;
  PieceInSlot* leaving_ = nullptr;
};

/// On the device between hold() or hold_anew() and rest() or drop(); else on the host.
class PieceInSlot {
 public:
  PieceInSlot(std::shared_ptr<HostStore> store, std::shared_ptr<PieceSlots> slots,
              std::int64_t numel, c10::ScalarType dtype, MemoryKind kind,
              std::shared_ptr<OffloadStore> disk);
  ~PieceInSlot();
  PieceInSlot(const PieceInSlot&) = delete;
  PieceInSlot& operator=(const PieceInSlot&) = delete;

  /// [numel] where it is: of the device while it is held, else of the host
  /// (HostPiece::on_host()).
  [[nodiscard]] const at::Tensor& tensor() const {
    return is_held() ? on_device_ : piece_.on_host();
  }
  [[nodiscard]] bool is_held() const { return place_ == Place::Held; }
  /// Where tensor() rests while it is not held.
  [[nodiscard]] HostHome& home() { return piece_.home(); }
  /// Starts to bring it to the device, behind what the current stream has been given.
  void fetch();
  /// The current stream may read and write it from now on.
  void hold();
  /// The same to be written anew: nothing is fetched, and what it holds is undefined.
  void hold_anew();
  /// The current stream has done with it: starts to copy it back.
  void rest();
  /// The same, and what it holds on the device is not needed: the host keeps what it has.
  void drop();
  /// Held to be read until what is returned goes, unless it is held anyway.
  [[nodiscard]] std::shared_ptr<void> use();

 private:
  enum class Place : std::uint8_t { Host, Arriving, Held, Leaving };
  [[nodiscard]] bool take_slot();
  void let_go();

  HostPiece piece_;
  std::shared_ptr<PieceSlots> slots_;
  Place place_ = Place::Host;
  void* slot_ = nullptr;
  at::Tensor on_device_;
};

}  // namespace sherd::detail
