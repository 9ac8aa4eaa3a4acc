#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llm/inputs/batch.h"

namespace llm::bench {

/// Where a bench's samples come from: ids of a file in order, or random ones.
struct BenchTokens {
  std::string file;  ///< of int32, little-endian; empty: random ids below `vocabulary`
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::int64_t supervised = 0;  ///< last tokens of each sample that are
  std::uint64_t seed = 0;
};

/// Samples `first` … `first` + `rows` − 1, the same on every rank that asks for them.
/// Throws sherd::Error: InputMissing for no such file, BadData for one that ends too early or has
/// ids outside the vocabulary.
[[nodiscard]] inputs::Batch bench_batch(const BenchTokens& tokens, std::int64_t first,
                                        std::int64_t rows);

}  // namespace llm::bench
