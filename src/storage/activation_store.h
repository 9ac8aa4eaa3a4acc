#pragma once
// What autograd saves of a unit's forward, in pinned memory of the host until its backward.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include "storage/device.h"

namespace sherd::detail {

/// Throws Error(Usage): what autograd saved is not what it was.
[[noreturn]] void refuse_changed_in_place();

class SavedByCall;

/// [Note: Activations on the host]
/// Storages that a call saves are copied to the host while it runs, and freed on the device when
/// the next call has ended: activations of two units lie on the device. A call's backward begins
/// with a fetch of its own storages and of those of the call before it, whose backward is next. The
/// compute stream waits for copies, the host for none.
/// Pinned blocks are reused. They take at most twice of what was asked for at a time, in multiples
/// of 2 MiB. Any thread takes and gives them.
class ActivationStore : public std::enable_shared_from_this<ActivationStore> {
 public:
  ActivationStore(c10::Device device, std::shared_ptr<MemoryLedger> ledger);
  /// Blocks until all copies have ended.
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// Leaves a storage on the device: of parameters and buffers.
  void keep(const c10::StorageImpl* storage) { kept_.insert(storage); }
  /// Returns true if the storage of a saved tensor goes to the host.
  [[nodiscard]] bool takes(const at::Tensor& tensor) const;
  /// Called when a call has ended: frees what the call before it saved.
  void end(const std::shared_ptr<SavedByCall>& call);
  /// Called before the call's backward: fetches what it saved, and what the call before it saved.
  static void fetch(SavedByCall& call);

  using Block = std::unique_ptr<PinnedBuffer>;
  /// Returns a block of at least `bytes`, for copies that are ordered behind the compute stream. If
  /// others must be freed for it, the host waits for copies.
  [[nodiscard]] Block take(std::int64_t bytes);
  /// Takes back a block of take(bytes). The compute stream waits for the block's copies.
  void give(Block block, std::int64_t bytes);
  [[nodiscard]] const CopyStreams& streams() const { return streams_; }
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  [[nodiscard]] Block reused(std::int64_t wanted);
  [[nodiscard]] std::vector<Block> superfluous(std::int64_t wanted);

  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::set<const c10::StorageImpl*> kept_;
  std::shared_ptr<SavedByCall> last_;
  std::mutex mutex_;                   ///< of the blocks and their bytes
  std::list<Block> free_;              ///< the longest unused first
  std::int64_t held_bytes_ = 0;        ///< of all blocks
  std::int64_t asked_bytes_ = 0;       ///< for those that are lent
  std::int64_t most_asked_bytes_ = 0;  ///< maximum of asked_bytes_ so far
  CopyStreams streams_;                ///< destroyed before the blocks
};

/// The bytes of one storage that saved tensors need: on the device, on the host, or being copied.
class ParkedStorage {
 public:
  /// Starts to copy them to the host, behind the current stream.
  ParkedStorage(std::shared_ptr<ActivationStore> store, const at::Tensor& tensor);
  ~ParkedStorage();
  ParkedStorage(const ParkedStorage&) = delete;
  ParkedStorage& operator=(const ParkedStorage&) = delete;

  /// Frees the device's memory. The current stream waits for the copy to the host.
  void leave();
  /// Starts to copy them back, unless they are on the device.
  void fetch();
  /// Returns the storage on the device, for the current stream. Throws Error(Usage) if the tensor
  /// was changed in place after it was saved.
  [[nodiscard]] const c10::Storage& use();
  /// Returns true if the tensor's storage is the same, unchanged since.
  [[nodiscard]] bool holds(const at::Tensor& tensor) const;

 private:
  enum class Place { Leaving, Host, Device };
  void check_version();
  void start_copy(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to);
  void await_copy();

  std::shared_ptr<ActivationStore> store_;
  std::mutex mutex_;
  std::int64_t bytes_;
  c10::Storage storage_;  ///< null while on the host
  c10::VariableVersion version_;
  std::uint32_t saved_version_;
  bool is_changed_ = false;
  Place place_ = Place::Leaving;
  ActivationStore::Block block_;
  c10::Stream computes_;              ///< stream that the memory is allocated on
  std::optional<c10::Event> copied_;  ///< the last copy, until `computes_` has waited for it
};

/// The storages that one call of a unit saves.
class SavedByCall {
 public:
  /// Parks the storage of `tensor`, once for all tensors that share it.
  [[nodiscard]] std::shared_ptr<ParkedStorage> park(ActivationStore& store,
                                                    const at::Tensor& tensor);
  /// Calls leave() or fetch() of all.
  void for_each(void (ParkedStorage::*change)()) const;

 private:
  friend class ActivationStore;
  std::map<const c10::StorageImpl*, std::weak_ptr<ParkedStorage>> parked_;
  std::weak_ptr<SavedByCall> before_;  ///< the call that ended before this one
};

}  // namespace sherd::detail
