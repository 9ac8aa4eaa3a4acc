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

/// Storage of a kind that comes from outside. It outlives the model.
class StorageFactory {
 public:
  StorageFactory() = default;
  StorageFactory(const StorageFactory&) = delete;
  StorageFactory& operator=(const StorageFactory&) = delete;
  virtual ~StorageFactory() = default;
  /// Null for a part that it leaves to Stores.
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
  /// Those of all parts.
  [[nodiscard]] std::vector<FileStore*> files() const;
  /// For updates of state on a device's host; null if there is none.
  [[nodiscard]] CopyEngine* copies() const { return copies_.get(); }
  /// Null unless gradients are on the host.
  [[nodiscard]] HostSlots* gradient_slots() const { return gradient_slots_.get(); }
  /// Null unless activations are offloaded.
  [[nodiscard]] ActivationStore* activations() const { return activations_.get(); }
  /// Whether any part of the state is offloaded.
  [[nodiscard]] bool any() const { return !files().empty() || copies_ != nullptr; }
  /// Whether updates overlap with the next forward: none of their copies blocks the host.
  [[nodiscard]] bool updates_on_side_stream() const {
    return offload_.optimizer_on_host && files().empty();
  }
  /// What they can take of the memory that the model is computed in.
  [[nodiscard]] std::int64_t most_in_memory_bytes() const {
    return most_bytes(false) + (copies_ == nullptr ? 0 : copies_->slot_bytes());
  }
  /// What files behind a host can take of its pages.
  [[nodiscard]] std::int64_t most_page_bytes() const { return most_bytes(true); }
  /// FileStore::free_memory() of all.
  void free_memory() const;
  /// Whether a transfer of any has failed since this was asked last.
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
  std::shared_ptr<HostSlots> gradient_slots_;
  std::shared_ptr<ActivationStore> activations_;
};

}  // namespace sherd::detail
