#pragma once
// State of a device's model that is kept on the host, or in a file behind it, and the copies to and
// from the device.

#include <array>
#include <cstdint>
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

class HostStorage;

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
  /// Grows each slot to at least `slot_bytes`.
  void reserve(std::int64_t slot_bytes);
  /// Returns the bytes of all slots.
  [[nodiscard]] std::int64_t slot_bytes() const { return std::int64_t{kSlots} * slot_bytes_; }
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
  /// Blocks until the host may read and write what it keeps.
  void synchronize();

  /// Returns the slots that whole storages are held in.
  [[nodiscard]] GatherArena& whole_slots() { return whole_slots_; }

 private:
  friend class HostStorage;
  [[nodiscard]] const CopyStreams& whole_streams();

  // For the views in use, those being fetched and those being written back.
  static constexpr std::size_t kSlots = 3;
  struct Slot {
    Buffer memory;
    std::vector<StoredView> views;  ///< those that are copied back
    std::vector<at::Tensor> on_device;
    std::vector<std::shared_ptr<void>> in_use;  ///< of files
    std::optional<c10::Event> fetched;
    std::optional<c10::Event> written;
  };

  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t slot_bytes_ = 0;
  std::array<Slot, kSlots> slots_;
  GatherArena whole_slots_;
  HostStorage* leaving_ = nullptr;  ///< keeps its slot until the next one is written
  // Slots are used in turn.
  std::size_t fetched_ = 0;       ///< number of fetch() so far
  std::size_t written_back_ = 0;  ///< number of those that have been written back or given up
  bool is_copying_ = false;       ///< perhaps
  // Destroyed before the slots.
  CopyStreams streams_;
  std::optional<c10::Stream> side_stream_;    ///< of side_stream()
  std::optional<CopyStreams> whole_streams_;  ///< of whole storages; unset until they are used
};

/// [Note: Storage of a device]
/// In pinned memory of the host, or in a file behind it. Pages of a file are read, copied to the
/// device, copied back and written. They are in memory only meanwhile, so they are not pinned, and
/// the host blocks for each copy; the file reads ahead and writes behind.
/// CopyEngine copies views for updates. prefetch() copies all of it, to the caller's place or to a
/// slot. Each copy waits for the event of the last write; hold() makes the current stream wait for
/// the copy, and other streams wait for fetched(). A storage that is written back keeps its slot
/// until the next one is, so that work in between does not wait for the copy. On the meta device
/// nothing is copied.
class HostStorage final : public Storage {
 public:
  /// `host`: where it is kept, see pinned_storage() and FileStorage. `has_slot`: it is held in a
  /// slot of `copies`. Else each prefetch() is given a place, where it is held to be read; tensor()
  /// stays the host's.
  HostStorage(std::shared_ptr<CopyEngine> copies, std::unique_ptr<Storage> host, bool has_slot);
  ~HostStorage() override;

  [[nodiscard]] const at::Tensor& tensor() override { return is_held() ? on_device_ : tensor_; }
  [[nodiscard]] bool is_held() const override { return place_ == Place::Held; }
  [[nodiscard]] FileStore* file() const override { return host_->file(); }
  [[nodiscard]] bool needs_place() const override { return !has_slot_; }

  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor& view, bool writes) override;
  void read_ahead(const at::Tensor& view) override { host_->read_ahead(view); }
  void write_back(const at::Tensor& view) override { host_->write_back(view); }
  [[nodiscard]] std::shared_ptr<void> copy_to_device(const c10::Stream& stream,
                                                     const at::Tensor& view,
                                                     const at::Tensor& to) override {
    return host_->copy_to_device(stream, view, to);
  }
  void copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                    const at::Tensor& view) override;

  void prefetch(void* place, const c10::Event* free) override;
  [[nodiscard]] const c10::Event* fetched() override { return fetched_ ? &*fetched_ : nullptr; }
  void hold(Access access) override;
  void write_back() override;
  void drop() override;
  void discard() override { drop(); }

 private:
  enum class Place : std::uint8_t { Host, Arriving, Held, Leaving };
  [[nodiscard]] at::Tensor all_at(void* place) const;
  [[nodiscard]] bool take_slot();
  void give_slot_back(std::optional<c10::Event> free_from);
  void let_go();
  void copy_all_to(void* place, const c10::Event* free);
  void await(const std::optional<c10::Event>& event) const;

  std::shared_ptr<CopyEngine> copies_;
  std::unique_ptr<Storage> host_;
  bool has_slot_;
  Place place_ = Place::Host;
  void* slot_ = nullptr;
  at::Tensor on_device_;
  std::optional<c10::Event> written_;
  std::optional<c10::Event> fetched_;
};

/// Returns storage in memory of the host that is pinned for a device.
[[nodiscard]] std::unique_ptr<Storage> pinned_storage(std::int64_t numel, c10::ScalarType dtype,
                                                      MemoryKind kind,
                                                      const std::shared_ptr<MemoryLedger>& ledger,
                                                      c10::Device device);

}  // namespace sherd::detail
