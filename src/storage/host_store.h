#pragma once
// The slots in which a device works with what of its model rests on the host.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "sherd/memory.h"
#include "storage/copy_streams.h"

namespace sherd::detail {

class HostHome;

/// A view of what rests on the host.
struct OnHost {
  HostHome* home = nullptr;
  at::Tensor view;
};

/// [Note: Slots of a device]
/// Stretches of what rests on the host are worked with on the device in turns: fetch() begins to
/// copy one into a slot, use() makes the current stream wait for it, write_back() begins to copy
/// it back when that stream has done with it. Copies to the device and to the host have a stream
/// each, so that both go on beside the work; a slot is written again when it has been copied back.
/// The work itself may have a stream of its own, so that what computes goes on beside all of it.
/// Whole pieces ([Note: Pieces on the host]) have streams of their own: they do not queue behind an
/// update's stretches. The host waits for nothing, but in settle() and for a disk
/// ([Note: A disk behind the host]). Used by one thread at a time; on the meta device only bytes
/// are counted.
class HostStore {
 public:
  HostStore(c10::Device device, std::shared_ptr<MemoryLedger> ledger);
  /// Returns when nothing is copied any more.
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  /// Makes slots that hold as much, or more if they did.
  void reserve(std::int64_t slot_bytes);
  /// What all slots take on the device.
  [[nodiscard]] std::int64_t slot_bytes() const { return kSlots * slot_bytes_; }
  /// What tensors take in a slot.
  [[nodiscard]] static std::int64_t bytes_in_slot(const std::vector<OnHost>& tensors);

  /// A stream for work with what rests here, which comes after all that the current one was given
  /// so far. None on the meta device.
  [[nodiscard]] std::optional<c10::Stream> stream_beside() const;
  /// The current stream goes on when that one has come to where it is now.
  void join() const;
  /// Before the first fetch() of what may have been written back before, or after an exception.
  void begin();
  /// `tensors` fit into a slot. The first `written` of them are copied back.
  void fetch(const std::vector<OnHost>& tensors, std::size_t written);
  /// What was fetched first and not used yet, as tensors of the device.
  [[nodiscard]] const std::vector<at::Tensor>& use();
  /// What use() returned last has been worked with.
  void write_back();
  /// What was fetched and not written back is not wanted any more: disks need not keep its pages,
  /// whose uses may not outlive their homes.
  void leave();
  /// Comes when all is there that has been written back so far; none on the meta device.
  [[nodiscard]] std::optional<c10::Event> written_back() const;
  /// The same of whole pieces.
  [[nodiscard]] std::optional<c10::Event> pieces_written_back() const;
  /// That copies of whole pieces begin on now; null on the meta device.
  [[nodiscard]] const CopyStreams* piece_streams();
  /// Returns when the host may read and write what rests here.
  void settle();

 private:
  // One is computed with while the next is on its way and the last goes back.
  static constexpr std::int64_t kSlots = 3;
  struct Slot {
    explicit Slot(c10::DeviceType type) : fetched(type), written(type) {}
    Buffer memory;
    std::vector<OnHost> on_host;  ///< those that are copied back
    std::vector<at::Tensor> on_device;
    std::vector<std::shared_ptr<void>> in_use;  ///< of disks
    c10::Event fetched;
    c10::Event written;
  };

  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t slot_bytes_ = 0;
  std::deque<Slot> slots_;
  std::deque<Slot*> fetched_;                   ///< and not written back, in order
  std::size_t next_ = 0;                        ///< of the slots
  std::unique_ptr<CopyStreams> streams_;        ///< null on the meta device
  bool is_copying_ = false;                     ///< perhaps
  std::optional<c10::Stream> beside_;           ///< of stream_beside()
  std::unique_ptr<CopyStreams> piece_streams_;  ///< null until they are used
};

}  // namespace sherd::detail
