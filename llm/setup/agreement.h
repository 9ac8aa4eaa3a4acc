#pragma once
// Work that fails on all ranks or on none, and settings on which ranks must agree.

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/error.h"
#include "sherd/world.h"

namespace llm::setup {

/// A failure that another rank reports: programs end with its code and print nothing.
class ReportedElsewhere : public sherd::Error {
 public:
  using Error::Error;
};

/// The longest that others wait for a rank that does long work alone, a named sherd::WorkPhase such
/// as reading, tokenizing or planning, and reports no progress.
inline constexpr std::chrono::minutes kLongestSilence{30};

/// Whether a failure of LibTorch is one for want of memory. Of allocators on a CPU and of oneDNN,
/// whose exception has no public type, only the words tell it.
[[nodiscard]] bool says_out_of_memory(const std::exception& error);

/// Runs `work` on every rank. If it throws on one, all throw: the lowest rank that failed its own
/// exception, the others ReportedElsewhere with the same code and message, so that a failure is
/// reported once and no rank waits for one that has given up. Collective.
void on_all_ranks(sherd::World& world, const std::function<void()>& work);

/// The same for work that returns something.
template <class Work>
[[nodiscard]] auto read_on_all_ranks(sherd::World& world, const Work& work) {
  std::optional<decltype(work())> result;
  on_all_ranks(world, [&] { result.emplace(work()); });
  return std::move(*result);
}

/// Runs `work` on rank 0 alone. Fails as `on_all_ranks` does. Collective.
void on_rank_0(sherd::World& world, const std::function<void()>& work);

/// Runs `work` on rank 0 and gives what it returns to every rank: for work that only one
/// may do, or whose result a shared file system shows to the others with a delay. Fails as
/// `on_all_ranks` does. Collective.
[[nodiscard]] std::string from_rank_0(sherd::World& world,
                                      const std::function<std::string()>& work);

/// What this rank does by itself between collectives may throw: the failure is kept until all ranks
/// hear of it, so that no rank leaves the others in a collective.
class KeptFailure {
 public:
  /// Does work of this rank alone, and keeps the first thing that it throws.
  void keep(const std::function<void()>& work);
  /// Throws what any rank has kept, on all of them. Collective.
  void share(sherd::World& world);
  /// As on_rank_0; what a rank has kept is its failure. Collective.
  void on_rank_0(sherd::World& world, const std::function<void()>& work);
  [[nodiscard]] bool is_kept() const { return failure_ != nullptr; }

 private:
  std::exception_ptr failure_;
};

/// "rank 3", or "ranks 1, 3 and 4 more": for messages.
[[nodiscard]] std::string names_of(const std::vector<int>& ranks);

/// Names with values as text: what a rank was started with.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Compares every rank's settings with rank 0's. Throws sherd::Error(RanksDisagree) on every rank,
/// listing each name that differs with the ranks and both values. Collective.
void require_agreement(sherd::World& world, const Settings& mine);

/// `settings` and, after them, the version of Sherd that a rank runs.
[[nodiscard]] Settings with_version(Settings settings, sherd::Version version = sherd::kVersion);

/// What ranks do before they compute anything together: they compare their settings and the version
/// of Sherd, and all take
/// the path of the processor that each of them has. Returns a notice about the path for the user,
/// or nothing. Collective. Throws as require_agreement() and sherd::ops::cpu::agree_on_isa().
[[nodiscard]] std::string agree_on_start(sherd::World& world, const Settings& mine);

}  // namespace llm::setup
