#pragma once
// The streams and slots with which a device works on state that is kept on its host.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "sherd/memory.h"
#include "storage/storage.h"
#include "storage/streams.h"

namespace sherd::detail {

/// A view of a storage that is not resident.
struct StoredView {
  Storage* storage = nullptr;
  at::Tensor view;
};

/// [Note: Slots of a device]
/// An update works on the device with a few views at a time: fetch() starts to copy some into a
/// slot, wait() makes the current stream wait for that, write_back() starts to copy them back when
/// the stream has done with them. Copies to the device and to the host have a stream each, so that
/// both overlap with the work; a slot is used again after it has been copied back. The update
/// itself may run on a side stream. Whole storages (HostStorage) have copy streams of their own and
/// do not queue behind an update. The host waits for nothing, but in synchronize() and for a file.
/// Used by one thread at a time; on the meta device bytes are only counted.
class CopyEngine {
 public:
  CopyEngine(c10::Device device, std::shared_ptr<MemoryLedger> ledger);
  /// Blocks until all copies have ended.
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  /// Grows each slot to at least `slot_bytes`.
  void reserve(std::int64_t slot_bytes);
  /// The bytes of all slots.
  [[nodiscard]] std::int64_t slot_bytes() const { return kSlots * slot_bytes_; }
  /// What views take in a slot.
  [[nodiscard]] static std::int64_t bytes_in_slot(const std::vector<StoredView>& views);

  /// A side stream for updates, ordered behind the current stream. None on the meta device.
  [[nodiscard]] std::optional<c10::Stream> side_stream() const;
  /// Orders the current stream behind the side stream.
  void join() const;
  /// Called before the first fetch() of views that may have been written back, or after an
  /// exception.
  void begin();
  /// Starts to copy `views`, which fit into a slot. The first `written` of them are copied back.
  void fetch(const std::vector<StoredView>& views, std::size_t written);
  /// Returns the tensors on the device of the oldest fetch() that has not been written back.
  [[nodiscard]] const std::vector<at::Tensor>& wait();
  /// The current stream has worked with what wait() returned last.
  void write_back();
  /// Gives up what was fetched and not written back: files need not keep its pages, whose uses must
  /// not outlive their storages.
  void abandon();
  /// The event of the last copy of a view to the host; none on the meta device.
  [[nodiscard]] std::optional<c10::Event> written_back() const;
  /// The same of whole storages.
  [[nodiscard]] std::optional<c10::Event> whole_written_back() const;
  /// The streams for copies of whole storages; null on the meta device.
  [[nodiscard]] const CopyStreams* whole_streams();
  /// Blocks until the host may read and write what it keeps.
  void synchronize();

 private:
  // One is computed with while the next is on its way and the last goes back.
  static constexpr std::int64_t kSlots = 3;
  struct Slot {
    explicit Slot(c10::DeviceType type) : fetched(type), written(type) {}
    Buffer memory;
    std::vector<StoredView> views;  ///< those that are copied back
    std::vector<at::Tensor> on_device;
    std::vector<std::shared_ptr<void>> in_use;  ///< of files
    c10::Event fetched;
    c10::Event written;
  };

  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t slot_bytes_ = 0;
  std::deque<Slot> slots_;
  std::deque<Slot*> fetched_;                   ///< and not written back, oldest first
  std::size_t next_ = 0;                        ///< of the slots
  std::unique_ptr<CopyStreams> streams_;        ///< null on the meta device
  bool is_copying_ = false;                     ///< perhaps
  std::optional<c10::Stream> side_stream_;      ///< of side_stream()
  std::unique_ptr<CopyStreams> whole_streams_;  ///< null until they are used
};

}  // namespace sherd::detail
