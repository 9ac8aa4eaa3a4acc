#pragma once
// Evaluation of a sharded model: loss, and exact match and F1 of the answers it writes.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llm/eval/generation.h"
#include "llm/eval/prediction.h"
#include "llm/inputs/dataset.h"
#include "llm/model/causal_lm.h"
#include "sherd/custom.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

struct EvaluationOptions {
  std::int64_t batch = 8;                    ///< samples a rank and forward
  bool generate = true;                      ///< also write answers and score them
  std::vector<text::TokenId> stop_ids = {};  ///< of `generate`: what ends an answer
  StopRequested stop_requested = {};         ///< asked before each batch and each written token
  std::function<void(std::int64_t samples)> on_progress = {};  ///< told how many are done
  /// Does what a rank does by itself before a batch. It may keep what that throws if
  /// `stop_requested` is true from then on: no rank leaves the others in a collective.
  std::function<void(const std::function<void()>& work)> alone =
      [](const std::function<void()>& work) { work(); };
  const sherd::Objective* objective = nullptr;  ///< the loss; null: cross-entropy
};

struct EvaluationResult {
  double loss = 0;  ///< mean over supervised tokens, of an objective over samples
  double em = 0;    ///< percent of questions; 0 without `generate`
  double f1 = 0;
  std::int64_t samples = 0;
  std::int64_t supervised_tokens = 0;
  double seconds = 0;
  std::map<std::string, double> figures;  ///< of the objective: means over samples
  std::vector<Prediction> predictions;  ///< in file order, on every rank; empty without `generate`

  [[nodiscard]] double samples_per_second() const {
    return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  }
};

/// Evaluates every sample of `dataset`, dealt over the ranks. Answers are generated greedily from
/// the prompts the model was trained with, at most `max_answer_tokens` long, and scored by the
/// official SQuAD v1.1 rules. Collective: all ranks run the same number of forwards, whatever their
/// share. Without gradients; the model's state stays as it is. Nothing is returned, on every rank,
/// if one of them was asked to stop before the end. Where the objective needs a reference, the
/// samples have it (inputs::with_reference()), or the model has an adapter to switch off.
[[nodiscard]] std::optional<EvaluationResult> evaluate(sherd::Sharded<model::CausalLm>& model,
                                                       const inputs::Dataset& dataset,
                                                       const text::Tokenizer& tokenizer,
                                                       const EvaluationOptions& options);

/// "loss 2.345 over 100 samples (812 supervised tokens), EM 0.0, F1 3.1, 45.2 samples/s"
[[nodiscard]] std::string evaluation_text(const EvaluationResult& result, bool generated);

}  // namespace llm::eval
