#include "llm/inputs/batch.h"

#include <algorithm>
#include <iterator>
#include <string>

#include <fmt/core.h>

#include "files/mapped_file.h"
#include "sherd/error.h"

namespace llm::inputs {
namespace {

// Micro-batches that would divide what each rank gets, or nothing if the ranks do not divide the
// batch.
std::string working_micro_batches(const BatchShape& shape) {
  if (shape.global_batch % shape.world != 0) {
    return "";
  }
  const std::int64_t per_rank = shape.global_batch / shape.world;
  std::int64_t best = std::min(shape.micro_batch, per_rank);
  while (per_rank % best != 0) {
    --best;
  }
  return fmt::format(", or train.micro_batch = {}", best);
}

}  // namespace

void BatchShape::validate() const {
  if (global_batch < 1 || micro_batch < 1 || world < 1) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("train.global_batch ({}) and train.micro_batch ({}) must be at "
                                   "least 1",
                                   global_batch, micro_batch));
  }
  const std::int64_t at_once = world * micro_batch;
  if (global_batch % at_once == 0) {
    return;
  }
  const std::int64_t below = global_batch / at_once * at_once;
  const std::string globals =
      below > 0 ? fmt::format("{} or {}", below, below + at_once) : fmt::format("{}", at_once);
  throw sherd::Error(
      sherd::ExitCode::Usage,
      fmt::format("train.global_batch = {} is not a multiple of {} ({} ranks x train.micro_batch = "
                  "{}): set train.global_batch = {}{}",
                  global_batch, at_once, world, micro_batch, globals,
                  working_micro_batches(*this)));
}

std::int64_t BatchShape::micro_batches(std::int64_t batch_samples) const {
  const std::int64_t at_once = world * micro_batch;
  return (batch_samples + at_once - 1) / at_once;
}

std::span<const std::int64_t> BatchShape::samples_of(std::span<const std::int64_t> batch,
                                                     std::int64_t micro, std::int64_t rank) const {
  const auto size = static_cast<std::int64_t>(batch.size());
  const std::int64_t begin = std::min((micro * world + rank) * micro_batch, size);
  const std::int64_t end = std::min(begin + micro_batch, size);
  return batch.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

Batch collate(const Samples& samples, std::span<const std::int64_t> indices) {
  Batch batch;
  if (samples.has_reference()) {
    batch.reference_logps.emplace();
  }
  for (const std::int64_t index : indices) {
    const Sample sample = samples[static_cast<std::size_t>(index)];
    if (sample.ids.empty()) {
      continue;
    }
    batch.input_ids.insert(batch.input_ids.end(), sample.ids.begin(), sample.ids.end());
    std::transform(sample.ids.begin(), sample.ids.end(), sample.supervised.begin(),
                   std::back_inserter(batch.labels), [](text::TokenId id, std::uint8_t supervised) {
                     return supervised == 1 ? std::int64_t{id} : kUnsupervised;
                   });
    batch.supervised_tokens += sample.supervised_tokens();
    if (sample.rejected_begin > 0) {
      batch.are_pairs = true;
      batch.bounds.push_back(batch.bounds.back() + sample.rejected_begin);
      batch.numbers.push_back(index);
    }
    if (sample.reference_logps) {
      batch.reference_logps->push_back(sample.reference_logps->chosen);
      batch.reference_logps->push_back(sample.reference_logps->rejected);
    }
    batch.bounds.push_back(std::ssize(batch.input_ids));
    batch.numbers.push_back(index);
  }
  sherd::files::require_mapped_files();
  return batch;
}

}  // namespace llm::inputs
