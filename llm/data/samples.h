#pragma once
// Tokenized samples side by side in flat arrays, in memory or in a mapped file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "llm/text/prompt.h"

namespace llm::data {

/// What a sample has lost; see llm::text::LabelledPrompt.
struct SampleCut {
  std::int32_t prompt_tokens = 0;  ///< of the context's end, or a record's begin
  std::int32_t answer_tokens = 0;
  std::int32_t answer_is_outside = 0;  ///< 1: in what was taken off the context
  bool operator==(const SampleCut&) const = default;
};

/// A question in tokens; see llm::text::LabelledPrompt. Valid as long as the Samples it is from.
struct Sample {
  std::span<const text::TokenId> ids;        ///< prompt, answer, end token
  std::span<const std::uint8_t> supervised;  ///< [ids]: 1 if the loss counts it, else 0
  SampleCut cut = {};

  [[nodiscard]] std::int64_t supervised_tokens() const;
  /// The ids before the first supervised one: what a model is asked to continue.
  [[nodiscard]] std::span<const text::TokenId> prompt() const;
};

/// The samples of a data set. Cheap to copy (copies share the arrays); may be read by several
/// threads at once.
class Samples {
 public:
  /// The arrays, kept alive by their owner. Sample i is ids [begins[i], begins[i + 1]).
  struct Arrays {
    std::span<const std::int64_t> begins;      ///< [samples + 1], from 0
    std::span<const text::TokenId> ids;        ///< [tokens]
    std::span<const std::uint8_t> supervised;  ///< [tokens]
    std::span<const SampleCut> cuts;           ///< [samples]
  };

  Samples() = default;
  /// Copies the ids. Memory: 5 bytes a token and 20 a sample.
  explicit Samples(const std::vector<text::LabelledPrompt>& prompts);
  /// Uses arrays that `owner` keeps alive.
  Samples(std::shared_ptr<const void> owner, const Arrays& arrays)
      : owner_(std::move(owner)), arrays_(arrays) {}

  [[nodiscard]] std::size_t size() const {
    return arrays_.begins.empty() ? 0 : arrays_.begins.size() - 1;
  }
  /// Throws sherd::Error(StorageIo) if a mapped file has become shorter (files/mapped_file.h).
  [[nodiscard]] Sample operator[](std::size_t index) const;
  [[nodiscard]] const Arrays& arrays() const { return arrays_; }

 private:
  std::shared_ptr<const void> owner_;
  Arrays arrays_;
};

/// Puts samples side by side. Memory: 5 bytes a token and 20 a sample.
class SamplesBuilder {
 public:
  SamplesBuilder();
  /// Copies the ids.
  void add(const Sample& sample);
  /// The samples added so far, which the builder gives away.
  [[nodiscard]] Samples build() &&;

 private:
  struct Storage;
  std::shared_ptr<Storage> storage_;
};

}  // namespace llm::data
