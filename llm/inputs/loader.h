#pragma once
// A rank's micro-batches, one step ahead.

#include <cstdint>
#include <future>
#include <vector>

#include "llm/inputs/batch.h"
#include "llm/inputs/rows.h"
#include "llm/inputs/sampler.h"

namespace llm::inputs {

/// Lays out the micro-batches of a step on a thread of its own while the step before it runs.
/// Not for use by several threads at once. Memory: two steps' batches of one rank.
class Loader {
 public:
  /// `sampler` and `shape` count rows.
  Loader(Samples samples, Rows rows, Sampler sampler, const BatchShape& shape, std::int64_t rank);
  ~Loader() = default;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The micro-batches of a step (from 0, over all epochs), in order. The one after the last that
  /// was asked for has been made ahead; any other is made at once.
  [[nodiscard]] std::vector<Batch> step(std::int64_t number);

 private:
  [[nodiscard]] std::vector<Batch> make(std::int64_t number);

  Samples samples_;
  Rows rows_;
  Sampler sampler_;  // of the thread while `ahead_` is being made
  BatchShape shape_;
  std::int64_t rank_;
  std::int64_t ahead_number_ = -1;
  std::future<std::vector<Batch>> ahead_;  // its destructor waits for the thread
};

}  // namespace llm::inputs
