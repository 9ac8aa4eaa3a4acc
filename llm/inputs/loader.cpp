#include "llm/inputs/loader.h"

#include <utility>

namespace llm::inputs {

Loader::Loader(Samples samples, Rows rows, Sampler sampler, const BatchShape& shape,
               std::int64_t rank)
    : samples_(std::move(samples)),
      rows_(std::move(rows)),
      sampler_(std::move(sampler)),
      shape_(shape),
      rank_(rank) {}

std::vector<Batch> Loader::make(std::int64_t number) {
  const std::vector<std::int64_t> rows = sampler_.batch(number);
  const std::int64_t count = shape_.micro_batches(static_cast<std::int64_t>(rows.size()));
  std::vector<Batch> batches;
  for (std::int64_t micro = 0; micro < count; ++micro) {
    batches.push_back(collate(samples_, rows_.samples_of(shape_.samples_of(rows, micro, rank_))));
  }
  return batches;
}

std::vector<Batch> Loader::step(std::int64_t number) {
  std::vector<Batch> batches;
  if (ahead_.valid()) {
    batches = ahead_.get();
  }
  if (ahead_number_ != number) {
    batches = make(number);
  }
  ahead_number_ = number + 1;
  ahead_ = std::async(std::launch::async, [this, next = number + 1] { return make(next); });
  return batches;
}

}  // namespace llm::inputs
