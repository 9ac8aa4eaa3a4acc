#pragma once
// Log-probabilities of a run's preference pairs before the model is trained.

#include <filesystem>
#include <string>
#include <vector>

#include "llm/inputs/samples.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/agreement.h"
#include "llm/setup/run_note.h"
#include "llm/track/progress.h"
#include "llm/train/run_hooks.h"
#include "llm/train/start.h"
#include "sherd/fully_shard.h"
#include "sherd/world.h"

namespace llm::train {

/// The log-likelihoods that the reference model, which is the run's model before its first step,
/// gives to the pairs of the run. They are computed once and kept next to the tokens, by the
/// content of model and data, so that no second model is ever in memory and a resumed run does not
/// need the first weights. Methods are collective. Memory: 16 bytes per pair.
class ReferenceLogps {
 public:
  /// Of a run that learns from pairs. Finds what earlier runs have kept. `now`: the run's note;
  /// `begun`: RunNote::reference of the checkpoint that it continues from. A resumed run keeps its
  /// reference: it reads weights only where log-probabilities are missing. Throws
  /// sherd::Error(Usage) on every rank if these would come from other weights than the run began
  /// with; as setup::reference_key().
  ReferenceLogps(RunInputs& inputs, sherd::World& world, const setup::RunNote& now,
                 const setup::ReferenceKey& begun);

  /// For the run's checkpoints.
  [[nodiscard]] const setup::ReferenceKey& key() const { return key_; }
  /// False: complete() needs the model with the values that it has before the first step. Not
  /// collective.
  [[nodiscard]] bool is_complete() const;
  /// Computes what was not kept, and keeps it, every few minutes too. Returns false if a rank was
  /// asked to stop: the next start goes on from there. Throws sherd::Error(NonFinite) on every rank
  /// for a log-likelihood that is not finite.
  [[nodiscard]] bool complete(sherd::Sharded<model::CausalLm>& model, const RunHooks& hooks,
                              track::Progress* progress);
  /// Gives the pairs of the run what was found of them. Not collective.
  void give();

 private:
  // A store of pairs: of training files, then of evaluated ones.
  struct Set {
    std::string name;
    inputs::Samples pairs;
    std::string digest;                         // of its tokens
    std::vector<inputs::PairLogps> logps = {};  // of the first ones

    [[nodiscard]] bool is_complete() const { return logps.size() == pairs.size(); }
  };
  [[nodiscard]] setup::ReferenceKey key_of_start(const setup::RunNote& now,
                                                 const setup::ReferenceKey& begun) const;
  void find();
  [[nodiscard]] bool compute(Set& set, sherd::Sharded<model::CausalLm>& model,
                             const RunHooks& hooks, track::Progress* progress) const;

  [[nodiscard]] std::filesystem::path file_of(const Set& set) const;
  [[nodiscard]] std::vector<inputs::PairLogps> kept(const Set& set) const;
  void keep(const Set& set, track::Progress* progress) const;

  RunInputs& inputs_;
  sherd::World& world_;
  std::filesystem::path folder_;  // empty: nothing is kept
  setup::ReferenceKey key_;
  std::vector<Set> sets_;
};

}  // namespace llm::train
