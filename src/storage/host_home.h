#pragma once
// Bytes of a device's model that rest on its host, or on a disk behind it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "storage/host_store.h"
#include "storage/pinned_buffer.h"
#include "storage/segment_home.h"

namespace sherd::detail {

/// [Note: A disk behind the host]
/// What a device has on a disk comes through the host: pages of a SegmentHome are read, copied to
/// the device, copied back and written. They are memory only meanwhile, so they are not pinned, and
/// the host waits for each copy; the disk reads ahead of it and writes behind it.

/// Zeroed bytes in pinned memory of the host, or on a disk. Used by one thread.
class HostHome {
 public:
  /// `disk`: null where it is pinned memory.
  HostHome(std::shared_ptr<HostStore> store, std::int64_t bytes, MemoryKind kind,
           std::shared_ptr<OffloadStore> disk);
  ~HostHome();
  HostHome(const HostHome&) = delete;
  HostHome& operator=(const HostHome&) = delete;

  [[nodiscard]] HostStore& store() const { return *store_; }
  /// Null where it is pinned memory.
  [[nodiscard]] OffloadStore* disk() const {
    return on_disk_ == nullptr ? nullptr : &on_disk_->store();
  }
  /// [numel] at `offset` bytes: a tensor of the host (or meta), to be used by it within use().
  [[nodiscard]] at::Tensor view(std::int64_t offset, std::int64_t numel,
                                c10::ScalarType dtype) const;

  /// The host may read and, with `writes`, write a view while what is returned lives.
  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor& view, bool writes);
  /// use() as a function that the home has to outlive.
  [[nodiscard]] std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)> usable() {
    return [this](const at::Tensor& view, bool writes) { return use(view, writes); };
  }
  /// A disk starts to read a view.
  void read_ahead(const at::Tensor& view);
  /// Copies a view on a stream of the store's, which is not asked on the meta device. What is
  /// returned keeps the pages of a disk in memory.
  [[nodiscard]] std::shared_ptr<void> copy_to_device(const c10::Stream& stream,
                                                     const at::Tensor& view, const at::Tensor& to);
  void copy_to_host(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& view);
  /// A disk starts to write what was copied to a view.
  void write_back(const at::Tensor& view);

 private:
  std::shared_ptr<HostStore> store_;
  std::int64_t bytes_;
  std::optional<PinnedBuffer> pinned_;
  std::unique_ptr<SegmentHome> on_disk_;
};

}  // namespace sherd::detail
