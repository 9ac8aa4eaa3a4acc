#pragma once
// What autograd saves of a unit's forward, in pinned memory of the host until its backward.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include "storage/pinned_buffer.h"
#include "storage/streams.h"

namespace sherd::detail {

/// Throws Error(Usage): what autograd saved is not what it was.
[[noreturn]] void refuse_changed_in_place();

/// Pinned blocks that are used again, and the streams that copy. Beside the most that was asked for
/// at a time, in multiples of 2 MiB, they are at most as much again. Any thread.
class ActivationPool {
 public:
  ActivationPool(c10::Device device, std::shared_ptr<MemoryLedger> ledger);
  /// Returns when nothing is copied any more.
  ~ActivationPool();
  ActivationPool(const ActivationPool&) = delete;
  ActivationPool& operator=(const ActivationPool&) = delete;

  using Block = std::unique_ptr<PinnedBuffer>;
  /// One that holds `bytes`, to be written by copies that come after what the computing stream has
  /// been given. Where others have to go for it, the host waits for copies.
  [[nodiscard]] Block take(std::int64_t bytes);
  /// One that was taken for so many bytes; the computing stream waits for what it was copied from
  /// or to.
  void give(Block block, std::int64_t bytes);
  /// Null on the meta device.
  [[nodiscard]] const CopyStreams* streams() const { return streams_.get(); }
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  struct Free {
    std::uint64_t since = 0;  ///< by `gifts_`
    Block block;
  };
  [[nodiscard]] Block reused(std::int64_t wanted);
  [[nodiscard]] std::vector<Block> superfluous(std::int64_t wanted);

  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::mutex mutex_;
  std::multimap<std::int64_t, Free> free_;  ///< by size
  std::uint64_t gifts_ = 0;
  std::int64_t held_bytes_ = 0;           ///< of all blocks
  std::int64_t asked_bytes_ = 0;          ///< for those that are lent
  std::int64_t most_asked_bytes_ = 0;     ///< of them at a time, so far
  std::unique_ptr<CopyStreams> streams_;  ///< end before the blocks go
};

/// The bytes of one storage: on their way to the host, there, or back. As long as something that
/// was saved needs them.
class ParkedStorage {
 public:
  /// Starts to copy, behind what the current stream has been given.
  ParkedStorage(std::shared_ptr<ActivationPool> pool, const at::Tensor& tensor);
  ~ParkedStorage();
  ParkedStorage(const ParkedStorage&) = delete;
  ParkedStorage& operator=(const ParkedStorage&) = delete;

  /// Gives up the device's memory, where the host has the bytes or will have them: what the current
  /// stream does next comes after the copy.
  void leave();
  /// Starts to bring them back, unless they are there.
  void fetch();
  /// The storage on the device, which the current stream may use from now on. Throws Error(Usage)
  /// where the tensor was changed in place after it was saved.
  [[nodiscard]] const c10::Storage& use();
  /// Whether it is the same storage, unchanged since.
  [[nodiscard]] bool holds(const at::Tensor& tensor) const;

 private:
  enum class Place { Leaving, Host, Device };
  void check_version();
  void await_copy();

  std::shared_ptr<ActivationPool> pool_;
  std::mutex mutex_;
  std::int64_t bytes_;
  c10::Storage storage_;  ///< null while on the host
  c10::VariableVersion version_;
  std::uint32_t saved_version_;
  bool is_changed_ = false;
  Place place_ = Place::Leaving;
  ActivationPool::Block block_;
  c10::Stream computes_;                ///< stream that the memory is allocated on
  std::shared_ptr<c10::Event> copied_;  ///< the last copy, either way
  bool is_awaited_ = false;             ///< that, by `computes_`
};

/// What one call of a unit saves.
class SavedByCall {
 public:
  /// What the storage of `tensor` is parked in: once for all tensors that share it.
  [[nodiscard]] std::shared_ptr<ParkedStorage> park(const std::shared_ptr<ActivationPool>& pool,
                                                    const at::Tensor& tensor);
  void leave();
  void fetch();

 private:
  friend class ActivationStore;
  std::map<const c10::StorageImpl*, std::weak_ptr<ParkedStorage>> parked_;
  std::weak_ptr<SavedByCall> before_;  ///< the call that ended before this one
};

/// [Note: Activations on the host]
/// What a call saves is copied to the host while the call goes on, and its memory given up when the
/// next call has ended: of two units activations lie on the device. Before a unit's backward, and
/// while the one after it runs, they come back. The computing stream waits for copies, the host for
/// none.
class ActivationStore {
 public:
  ActivationStore(c10::Device device, std::shared_ptr<MemoryLedger> ledger);

  /// Storages that stay where they are: parameters, buffers.
  void keep(const c10::StorageImpl* storage) { kept_.insert(storage); }
  /// Whether the storage of a saved tensor goes to the host.
  [[nodiscard]] bool takes(const at::Tensor& tensor) const;
  [[nodiscard]] const std::shared_ptr<ActivationPool>& pool() const { return pool_; }
  /// A call has ended: what the one before it saved leaves.
  void end(const std::shared_ptr<SavedByCall>& call);
  /// The call's backward is about to begin: what it saved comes back, and that of the call before.
  static void fetch(SavedByCall& call);

 private:
  std::shared_ptr<ActivationPool> pool_;
  std::set<const c10::StorageImpl*> kept_;
  std::shared_ptr<SavedByCall> last_;
};

}  // namespace sherd::detail
