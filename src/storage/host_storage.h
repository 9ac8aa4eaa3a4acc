#pragma once
// State of a device's model that is kept on the host, or in a file behind it, and the copies to and
// from the device.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "storage/device.h"
#include "storage/file_storage.h"

namespace sherd::detail {

/// A view of a storage that is not resident.
struct StoredView {
  Storage* storage = nullptr;
  at::Tensor view;
};

/// [Note: Slots of a device]
/// An update works on the device with a few views at a time: fetch() starts to copy them into a
/// slot, wait() makes the current stream wait for the copy, write_back() starts to copy them back
/// behind the current stream. Each direction has a stream, so that both overlap with the work. The
/// update may run on a side stream. Whole storages (HostStorage) have copy streams of their own and
/// do not queue behind an update. The host blocks only in synchronize() and for a file. Used by one
/// thread at a time; on the meta device bytes are only counted.
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
  /// Returns the bytes of all slots.
  [[nodiscard]] std::int64_t slot_bytes() const { return kSlots * slot_bytes_; }
  /// Returns the bytes that views take in a slot.
  [[nodiscard]] static std::int64_t bytes_in_slot(const std::vector<StoredView>& views);

  /// Returns a side stream for updates, ordered behind the current stream; none on meta.
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
  /// Starts to copy back what wait() returned last.
  void write_back();
  /// Gives up what was fetched and not written back: its files need not keep the pages.
  void abandon();
  /// Returns the event of the last copy of a view to the host; none on meta.
  [[nodiscard]] std::optional<c10::Event> written_back() const;
  /// Returns the same of whole storages.
  [[nodiscard]] std::optional<c10::Event> whole_written_back() const;
  /// Returns the streams for copies of whole storages; null on meta.
  [[nodiscard]] const CopyStreams* whole_streams();
  /// Blocks until the host may read and write what it keeps.
  void synchronize();

 private:
  // For the views in use, those being fetched and those being written back.
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

class HostStorage;

/// The device slots that storages are held in. A storage that is written back keeps its slot until
/// the next one is, so that work in between does not wait for the copy.
class HostSlots : public GatherArena {
 public:
  HostSlots(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
      : GatherArena(0, std::move(ledger), device, MemoryKind::OffloadSlot) {}
  /// Orders the current stream behind all copies.
  ~HostSlots();
  HostSlots(const HostSlots&) = delete;
  HostSlots& operator=(const HostSlots&) = delete;

 private:
  friend class HostStorage;
  HostStorage* leaving_ = nullptr;
};

/// [Note: Storage of a device]
/// In pinned memory of the host, or in a file behind it. Pages of a file are read, copied to the
/// device, copied back and written. They are in memory only meanwhile, so they are not pinned, and
/// the host blocks for each copy; the file reads ahead and writes behind.
/// CopyEngine copies views for updates. prefetch() copies all of it, to the caller's place or to a
/// slot. Each copy waits for the event of the last write; hold() makes the current stream wait for
/// the copy, and other streams wait for fetched(). On the meta device nothing is copied.
class HostStorage final : public Storage {
 public:
  /// `file`: null for pinned memory. `slots`: null if each prefetch() is given a place, where it is
  /// held to be read; tensor() stays the host's.
  HostStorage(std::shared_ptr<CopyEngine> copies, std::shared_ptr<FileStore> file,
              std::shared_ptr<HostSlots> slots, std::int64_t numel, c10::ScalarType dtype,
              MemoryKind kind);
  ~HostStorage() override;

  [[nodiscard]] const at::Tensor& tensor() override { return is_held() ? on_device_ : tensor_; }
  [[nodiscard]] bool is_held() const override { return place_ == Place::Held; }
  [[nodiscard]] FileStore* file() const override {
    return file_ == nullptr ? nullptr : file_->file();
  }
  [[nodiscard]] bool needs_place() const override { return slots_ == nullptr; }

  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor& view, bool writes) override;
  void read_ahead(const at::Tensor& view) override;
  void write_back(const at::Tensor& view) override;
  [[nodiscard]] std::shared_ptr<void> copy_to_device(const c10::Stream& stream,
                                                     const at::Tensor& view,
                                                     const at::Tensor& to) override;
  void copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                    const at::Tensor& view) override;

  void prefetch(void* place, const c10::Event* free) override;
  [[nodiscard]] const c10::Event* fetched() override { return fetched_ ? &*fetched_ : nullptr; }
  void hold(Access access) override;
  void write_back() override;
  void drop() override;
  void discard() override { drop(); }
  void views_written_back() override { written_ = copies_->written_back(); }

 private:
  enum class Place : std::uint8_t { Host, Arriving, Held, Leaving };
  [[nodiscard]] bool take_slot();
  void let_go();
  void copy_all_to(void* place, const c10::Event* free);
  void await(const std::optional<c10::Event>& event) const;

  std::shared_ptr<CopyEngine> copies_;
  std::shared_ptr<HostSlots> slots_;
  std::optional<PinnedBuffer> pinned_;
  std::unique_ptr<FileStorage> file_;
  Place place_ = Place::Host;
  void* slot_ = nullptr;
  at::Tensor on_device_;
  std::optional<c10::Event> written_;
  std::optional<c10::Event> fetched_;
};

}  // namespace sherd::detail
