#pragma once
// Where a rank keeps a part of its model's state.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "storage/gather_arena.h"

namespace sherd::detail {

class FileStore;

/// Overwrite: the contents are not read, and are undefined before they are written.
enum class Access : std::uint8_t { Read, Write, Overwrite };

/// [Note: Storage]
/// Zero-initialised elements [numel] of one dtype: in the model's memory (ResidentStorage), in a
/// file (FileStorage, on CPUs), or on the host of a device (HostStorage). Users do not ask which
/// kind it is. There are three ways to use it, which do nothing if it is resident:
/// - the host reads and writes a view of tensor() within use();
/// - the current stream works with all of it between hold() and write_back() or drop();
/// - an update copies views to slots of the device and back (CopyEngine).
/// A failed transfer throws Error(StorageIo), and FileStore remembers it. Used by one thread.
class Storage {
 public:
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  /// Returns [numel]: on the device while it is held, else where it is kept.
  [[nodiscard]] virtual const at::Tensor& tensor() { return tensor_; }
  /// False if callers must be shown a copy.
  [[nodiscard]] virtual bool is_resident() const { return false; }
  /// True between hold() and write_back() or drop().
  [[nodiscard]] virtual bool is_held() const { return false; }
  /// Returns its file, on this host or behind it; null if it is in none.
  [[nodiscard]] virtual FileStore* file() const { return nullptr; }
  /// Returns the address where an all-gather can read it; null if it must be copied.
  [[nodiscard]] virtual void* address() const { return nullptr; }
  /// True if an all-gather reads it from the place given to prefetch().
  [[nodiscard]] virtual bool needs_place() const { return false; }

  /// Lets the host read and, with `writes`, write `view` while the result lives. Blocks.
  [[nodiscard]] virtual std::shared_ptr<void> use(const at::Tensor& /*view*/, bool /*writes*/) {
    return nullptr;
  }
  using Use = std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)>;
  /// Returns use() as a function, which the storage must outlive; empty if it is resident.
  [[nodiscard]] Use usable() {
    return is_resident() ? Use() : [this](const at::Tensor& view, bool writes) {
      return use(view, writes);
    };
  }
  /// Starts to read `view` from a file.
  virtual void read_ahead(const at::Tensor& /*view*/) {}
  /// Starts to write what differs in `view` to the file.
  virtual void write_back(const at::Tensor& /*view*/) {}
  /// Copies a view on `stream`. Blocks for a file, whose pages stay in memory while the result
  /// lives.
  [[nodiscard]] virtual std::shared_ptr<void> copy_to_device(const c10::Stream& stream,
                                                             const at::Tensor& view,
                                                             const at::Tensor& to);
  virtual void copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                            const at::Tensor& view);

  /// Starts to copy all of it to the device: to `place` after `free` (null: at once), or to a slot.
  virtual void prefetch(void* /*place*/ = nullptr, const c10::Event* /*free*/ = nullptr) {}
  /// Returns the event of the last prefetch(); null if nothing was copied.
  [[nodiscard]] virtual const c10::Event* fetched() { return nullptr; }
  /// Lets the current stream use tensor().
  virtual void hold(Access /*access*/) {}
  /// Ends hold() and starts to write it back. Nothing if it is not held.
  virtual void write_back() {}
  /// Ends hold(); what was written on the device is lost.
  virtual void drop() {}
  /// Makes the contents undefined until they are written.
  virtual void discard() {}

  /// Holds it for reading until the result goes, unless it is held anyway.
  [[nodiscard]] std::shared_ptr<void> read();

 protected:
  at::Tensor tensor_;  ///< where it is kept
};

/// In the memory that the model is computed in.
class ResidentStorage final : public Storage {
 public:
  /// `owner`: of the tensor's memory; null if somebody else owns it.
  explicit ResidentStorage(at::Tensor tensor, std::shared_ptr<void> owner = nullptr)
      : owner_(std::move(owner)) {
    tensor_ = std::move(tensor);
  }
  /// Takes a slot with the first tensor(), and gives it back in discard(). All its users are on one
  /// stream.
  ResidentStorage(std::int64_t numel, c10::ScalarType dtype, c10::Device device,
                  std::shared_ptr<GatherArena> slots)
      : numel_(numel), dtype_(dtype), device_(device), slots_(std::move(slots)) {}

  [[nodiscard]] const at::Tensor& tensor() override;
  [[nodiscard]] bool is_resident() const override { return true; }
  void discard() override;

 private:
  std::shared_ptr<void> owner_;
  std::int64_t numel_ = 0;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
  c10::Device device_ = c10::kCPU;
  std::shared_ptr<GatherArena> slots_;
  void* slot_ = nullptr;
};

}  // namespace sherd::detail
