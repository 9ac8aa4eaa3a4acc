#pragma once
// What autograd saves while a unit runs, kept elsewhere than where it was computed.

#include <memory>

#include "step/unit_use.h"
#include "storage/activation_store.h"

namespace sherd::detail {

/// While it lives, what autograd saves on this thread belongs to a call of a unit and goes to the
/// host (ShardOptions::offload). Scopes nest; the inner call's is its own.
class SavingScope {
 public:
  /// Of the root, which runs first in backward and last in forward, and of what backward computes
  /// again, nothing moves. Throws Error(Unavailable) where the process has an engine of autograd
  /// that is another's (Python's).
  explicit SavingScope(UnitUse& use);
  /// The call has ended.
  ~SavingScope();
  SavingScope(const SavingScope&) = delete;
  SavingScope& operator=(const SavingScope&) = delete;

  [[nodiscard]] ActivationStore& store() const { return *store_; }
  [[nodiscard]] SavedByCall& call() const { return *call_; }

 private:
  ActivationStore* store_ = nullptr;  ///< null: nothing moves
  std::shared_ptr<SavedByCall> call_;
  SavingScope* around_ = nullptr;
};

}  // namespace sherd::detail
