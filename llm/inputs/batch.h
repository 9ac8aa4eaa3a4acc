#pragma once
// How a step's samples are dealt to ranks and micro-batches, and how a micro-batch is laid out.

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "llm/inputs/label.h"
#include "llm/inputs/samples.h"

namespace llm::inputs {

/// How many samples a step has, and how they are dealt.
struct BatchShape {
  std::int64_t global_batch = 0;  ///< samples a step, over all ranks (`train.global_batch`)
  std::int64_t micro_batch = 0;   ///< samples a rank computes at a time (`train.micro_batch`)
  std::int64_t world = 1;         ///< ranks that get different samples

  /// Throws sherd::Error Usage, naming numbers that would work, unless global_batch is a multiple
  /// of world x micro_batch.
  void validate() const;
  /// Micro-batches that each rank computes in a step of `batch_samples` samples (the last step of
  /// an epoch has fewer).
  [[nodiscard]] std::int64_t micro_batches(std::int64_t batch_samples) const;
  /// Which of a step's samples belong to a micro-batch of a rank: places (micro * world + rank) *
  /// micro_batch + row. So W ranks with one micro-batch each compute the micro-batches that one
  /// rank accumulates in order. Empty where the step has no sample left for the rank; the rank
  /// still takes part in every collective.
  [[nodiscard]] std::span<const std::int64_t> samples_of(std::span<const std::int64_t> batch,
                                                         std::int64_t micro,
                                                         std::int64_t rank) const;
};

/// A micro-batch: its documents side by side, without padding. A sample is a document, or a pair of
/// them. No tokens without samples.
struct Batch {
  std::vector<std::int64_t> input_ids;  ///< [tokens]
  std::vector<std::int64_t>
      labels;  ///< [tokens], not shifted: the id at its own position, else kUnsupervised
  std::vector<std::int64_t> bounds = {0};  ///< [documents + 1]: where each begins; the last end
  std::int64_t supervised_tokens = 0;      ///< labels that count
  bool are_pairs = false;  ///< documents 2i and 2i + 1 are the chosen and rejected text of sample i
  /// [documents]; none where the samples do not have them.
  std::optional<std::vector<double>> reference_logps = std::nullopt;
  std::vector<std::int64_t> numbers = {};  ///< [documents]: of the sample in the data set

  [[nodiscard]] std::int64_t tokens() const { return bounds.back(); }
  [[nodiscard]] std::int64_t documents() const { return std::ssize(bounds) - 1; }
  [[nodiscard]] std::int64_t samples() const { return documents() / (are_pairs ? 2 : 1); }
};

/// Lays out the samples of these indices, in this order. A sample without ids is left out.
Batch collate(const Samples& samples, std::span<const std::int64_t> indices);

}  // namespace llm::inputs
