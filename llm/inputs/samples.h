#pragma once
// Tokenized samples, in memory or in a mapped file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "llm/text/prompt.h"

namespace llm::inputs {

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

/// Where samples are kept: in memory, in a mapped store, or in a mixture of others. May be read by
/// several threads at once.
class SampleSource {
 public:
  SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;
  virtual ~SampleSource() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// Throws sherd::Error(StorageIo) if a mapped file is damaged or has become shorter.
  [[nodiscard]] virtual Sample at(std::size_t index) const = 0;
  /// Tokens of a sample, without reading them.
  [[nodiscard]] virtual std::int64_t length(std::size_t index) const = 0;
  /// Supervised tokens of a sample, without reading its tokens.
  [[nodiscard]] virtual std::int64_t supervised(std::size_t index) const = 0;
  /// Tokens of all samples.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
};

/// The samples of a data set. Cheap to copy (copies share the source); may be read by several
/// threads at once.
class Samples {
 public:
  Samples() = default;
  /// Copies the ids. Memory: 5 bytes per token and 20 per sample.
  explicit Samples(const std::vector<text::LabelledPrompt>& prompts);
  explicit Samples(std::shared_ptr<const SampleSource> source) : source_(std::move(source)) {}

  [[nodiscard]] std::size_t size() const { return source_ ? source_->size() : 0; }
  [[nodiscard]] Sample operator[](std::size_t index) const { return source_->at(index); }
  [[nodiscard]] std::int64_t length(std::size_t index) const { return source_->length(index); }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const {
    return source_->supervised(index);
  }
  [[nodiscard]] std::int64_t tokens() const { return source_ ? source_->tokens() : 0; }

 private:
  std::shared_ptr<const SampleSource> source_;
};

/// What a sample has lost.
[[nodiscard]] SampleCut cut_of(const text::LabelledPrompt& prompt);

}  // namespace llm::inputs
