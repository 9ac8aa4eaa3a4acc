#pragma once
// State of a device's model that is kept on the host, or in a file behind it.

#include <cstdint>
#include <memory>
#include <optional>

#include "storage/copy_engine.h"
#include "storage/file_storage.h"
#include "storage/gather_arena.h"
#include "storage/pinned_buffer.h"

namespace sherd::detail {

class HostStorage;

/// The slots of the device that storages are held in. The one that leaves keeps its slot until the
/// next one leaves, so that what is computed meanwhile does not wait for the copy.
class HostSlots {
 public:
  HostSlots(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
      : arena_(0, std::move(ledger), device, MemoryKind::OffloadSlot) {}
  /// Orders what the current stream does from then on behind all copies.
  ~HostSlots();
  HostSlots(const HostSlots&) = delete;
  HostSlots& operator=(const HostSlots&) = delete;
  /// The bytes of all slots, unless more is in use at once.
  void set_limit(std::int64_t bytes) { arena_.set_limit(bytes); }

 private:
  friend class HostStorage;
  GatherArena arena_;
  HostStorage* leaving_ = nullptr;
};

/// [Note: Storage of a device]
/// In pinned memory of the host, or in a file behind it. What is in a file comes through the host:
/// pages are read, copied to the device, copied back and written. They are memory only meanwhile,
/// so they are not pinned, and the host waits for each copy; the file reads ahead of it and writes
/// behind it.
/// Views are copied for updates (CopyEngine). All of it is copied by prefetch(), to a place that
/// the caller names or to a slot. Whoever writes it leaves an event, which the next copy waits for;
/// the current stream waits for the copy in hold(), or another stream for fetched(); the host waits
/// for nothing but a file. On the meta device nothing is copied.
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
