#pragma once
// Where the parts of a model rest.

#include <cstdint>
#include <memory>
#include <vector>

#include "storage/activation_store.h"
#include "storage/host_store.h"
#include "storage/piece_in_slot.h"
#include "storage/segment_home.h"

namespace sherd::detail {

/// Null: in memory. Of a device a disk is behind the host ([Note: A disk behind the host]).
struct OffloadStores {
  std::shared_ptr<OffloadStore> optimizer = nullptr;   ///< masters and moments, on a disk
  std::shared_ptr<OffloadStore> gradients = nullptr;   ///< their sums
  std::shared_ptr<OffloadStore> parameters = nullptr;  ///< as they travel
  std::shared_ptr<HostStore> on_host = nullptr;        ///< of a device, where anything rests there:
  bool optimizer_on_host = false;                      ///< masters and moments
  std::shared_ptr<PieceSlots> gradient_slots = nullptr;  ///< null where gradients do not rest there
  std::shared_ptr<ActivationStore> activations = nullptr;

  /// Whether any part of the state rests elsewhere.
  [[nodiscard]] bool any() const { return !all().empty() || on_host != nullptr; }
  /// Whether updates go on beside the next forward: nothing that they copy makes the host wait.
  [[nodiscard]] bool updates_beside() const { return optimizer_on_host && all().empty(); }
  /// On disks.
  [[nodiscard]] std::vector<OffloadStore*> all() const;
  /// What they can take of the memory that the model is computed in.
  [[nodiscard]] std::int64_t most_in_memory_bytes() const;
  /// What those behind a host can take of its pages.
  [[nodiscard]] std::int64_t most_page_bytes() const;
  /// OffloadStore::rest() of all.
  void rest() const;
  /// Whether a transfer of any has failed since this was asked last.
  [[nodiscard]] bool take_failure() const;
};

}  // namespace sherd::detail
