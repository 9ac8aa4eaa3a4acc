#pragma once
// A segment's piece on the host of a device, which comes to the device whole.

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "storage/host_home.h"

namespace sherd::detail {

/// [Note: Pieces on the host]
/// A stretch of a piece comes to the device for its update (HostStore::fetch()); the whole of it,
/// by fetch(), to a place that the caller names. Whoever writes it leaves an event, for which the
/// next fetch waits; the current stream waits for the fetch in await(), or another stream for
/// fetched(), the host for nothing but a disk. Used by one thread; on the meta device nothing is
/// copied.
class HostPiece {
 public:
  /// `disk`: as HostHome's.
  HostPiece(std::shared_ptr<HostStore> store, std::int64_t numel, c10::ScalarType dtype,
            MemoryKind kind, std::shared_ptr<OffloadStore> disk);

  [[nodiscard]] HostStore& store() const { return home_.store(); }
  [[nodiscard]] HostHome& home() { return home_; }
  /// [numel] of the host, to be read and written by it within HostHome::use().
  [[nodiscard]] const at::Tensor& on_host() const { return on_host_; }

  /// Starts to copy it to `place` on the device, when it has been written and `free`, after which
  /// nothing else uses that place, has come.
  void fetch(void* place, const c10::Event* free);
  /// Comes when it has been fetched; null on the meta device.
  [[nodiscard]] const c10::Event* fetched() const { return fetched_ ? &*fetched_ : nullptr; }
  /// The current stream waits for the fetch.
  void await() const;
  /// Starts to copy it back from `place`, behind what the current stream has been given.
  void write_back(void* place);
  /// The current stream waits for that.
  void await_write() const;
  /// Stretches of it have been written back by the store.
  void was_written_back() { written_ = store().written_back(); }

 private:
  [[nodiscard]] at::Tensor at(void* place) const;

  HostHome home_;
  at::Tensor on_host_;
  std::optional<c10::Event> written_;
  std::optional<c10::Event> fetched_;
};

}  // namespace sherd::detail
