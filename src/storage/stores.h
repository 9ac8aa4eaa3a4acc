#pragma once
// Where the parts of a model's state are kept.

#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/options.h"
#include "storage/activation_store.h"
#include "storage/host_storage.h"

namespace sherd::detail {

/// Parts of a model's state that can be offloaded: masters and moments, sums of gradients, the
/// shards that are gathered.
enum class Part : std::uint8_t { Optimizer, Gradients, Parameters };

/// Makes storage of a kind from outside. It outlives the model.
class StorageFactory {
 public:
  StorageFactory() = default;
  StorageFactory(const StorageFactory&) = delete;
  StorageFactory& operator=(const StorageFactory&) = delete;
  virtual ~StorageFactory() = default;
  /// Returns null for a part that it leaves to Stores.
  [[nodiscard]] virtual std::unique_ptr<Storage> make(Part part, std::int64_t numel,
                                                      c10::ScalarType dtype) const = 0;
};

/// Follows ShardOptions::offload. A part that is offloaded neither to a file nor to the host is
/// resident. With a device a file is behind the host ([Note: Storage of a device]).
class Stores {
 public:
  /// `factory`: asked first; may be null.
  Stores(const Offload& offload, c10::Device device, std::shared_ptr<MemoryLedger> ledger,
         const StorageFactory* factory);

  /// Makes the storage of a part; null if that is resident.
  [[nodiscard]] std::unique_ptr<Storage> offloaded(Part part, std::int64_t numel,
                                                   c10::ScalarType dtype, MemoryKind kind) const;
  /// The same, resident if the part is.
  [[nodiscard]] std::unique_ptr<Storage> make(Part part, std::int64_t numel, c10::ScalarType dtype,
                                              MemoryKind kind) const;

  /// Null if the part is in no file.
  [[nodiscard]] FileStore* file(Part part) const;
  /// Returns those of all parts.
  [[nodiscard]] std::vector<FileStore*> files() const;
  /// Null if no state is on a device's host.
  [[nodiscard]] CopyEngine* copies() const { return copies_.get(); }
  /// Null unless gradients are on the host.
  [[nodiscard]] GatherArena* gradient_slots() const {
    return offload_.gradients_on_host ? &copies_->whole_slots() : nullptr;
  }
  /// Null unless activations are offloaded.
  [[nodiscard]] ActivationStore* activations() const { return activations_.get(); }
  /// True if any part of the state is offloaded.
  [[nodiscard]] bool any() const { return !files().empty() || copies_ != nullptr; }
  /// True if updates overlap with the next forward: none of their copies blocks the host.
  [[nodiscard]] bool updates_on_side_stream() const {
    return offload_.optimizer_on_host && files().empty();
  }
  /// Returns the maximum bytes that they take of the model's memory.
  [[nodiscard]] std::int64_t most_in_memory_bytes() const {
    return most_bytes(false) + (copies_ == nullptr ? 0 : copies_->slot_bytes());
  }
  /// Returns the maximum bytes of host pages that files behind it take.
  [[nodiscard]] std::int64_t most_page_bytes() const { return most_bytes(true); }
  /// Calls FileStore::free_memory() of all.
  void free_memory() const;
  /// Returns true if a transfer of any has failed since the last call.
  [[nodiscard]] bool take_failure() const;

 private:
  Offload offload_;
  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  const StorageFactory* factory_;
  struct Place {
    std::shared_ptr<FileStore> file;  ///< null: in none
    bool is_on_host = false;          ///< or in a file behind it
  };
  [[nodiscard]] std::int64_t most_bytes(bool behind_host) const;
  Place places_[3];  ///< by part
  std::shared_ptr<CopyEngine> copies_;
  std::shared_ptr<GatherArena> resident_gradients_;
  std::shared_ptr<ActivationStore> activations_;
};

}  // namespace sherd::detail
