#pragma once
// Tokenized samples.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

/// Log-likelihoods that a model gives to the answers of a pair.
struct PairLogps {
  double chosen = 0;
  double rejected = 0;
};

/// A question in tokens; see llm::text::LabelledPrompt. Valid as long as the Samples it is from.
struct Sample {
  std::span<const text::TokenId> ids;        ///< prompt, answer, end token; of a pair both
  std::span<const std::uint8_t> supervised;  ///< [ids]: 1 if the loss counts it, else 0
  SampleCut cut = {};
  std::int64_t rejected_begin = 0;  ///< of a pair: where its second document begins; else 0
  std::optional<PairLogps> reference_logps = std::nullopt;  ///< of a pair, by the reference model

  [[nodiscard]] std::int64_t supervised_tokens() const;
  /// The ids before the first supervised one: what a model is asked to continue.
  [[nodiscard]] std::span<const text::TokenId> prompt() const;
};

/// The documents of a sample: itself, or those of a pair, chosen before rejected. Both have the
/// cut of the pair.
[[nodiscard]] std::vector<Sample> documents_of(const Sample& sample);

/// Where samples are kept: in a mapped store, or in a mixture of others. May be read by several
/// threads at once.
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
  /// Sample::rejected_begin, without reading its tokens.
  [[nodiscard]] virtual std::int64_t rejected_begin(std::size_t /*index*/) const { return 0; }
  /// True if all samples are pairs with Sample::reference_logps.
  [[nodiscard]] virtual bool has_reference() const { return false; }
  /// Tokens of all samples.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
};

/// The samples of a data set. Cheap to copy (copies share the source); may be read by several
/// threads at once.
class Samples {
 public:
  Samples() = default;
  explicit Samples(std::shared_ptr<const SampleSource> source) : source_(std::move(source)) {}

  [[nodiscard]] std::size_t size() const { return source_ ? source_->size() : 0; }
  [[nodiscard]] Sample operator[](std::size_t index) const { return source_->at(index); }
  [[nodiscard]] std::int64_t length(std::size_t index) const { return source_->length(index); }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const {
    return source_->supervised(index);
  }
  [[nodiscard]] std::int64_t rejected_begin(std::size_t index) const {
    return source_->rejected_begin(index);
  }
  [[nodiscard]] bool has_reference() const { return source_ && source_->has_reference(); }
  [[nodiscard]] std::int64_t tokens() const { return source_ ? source_->tokens() : 0; }

 private:
  std::shared_ptr<const SampleSource> source_;
};

/// Pairs with what a reference model makes of them: `logps` has one entry per sample. Memory: 16
/// bytes per pair. Throws std::invalid_argument for another number of entries.
[[nodiscard]] Samples with_reference(Samples pairs, std::vector<PairLogps> logps);

/// What a sample has lost.
[[nodiscard]] SampleCut cut_of(const text::LabelledPrompt& prompt);

}  // namespace llm::inputs
