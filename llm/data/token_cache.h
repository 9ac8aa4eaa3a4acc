#pragma once
// Tokenized data files, kept between runs.

#include <filesystem>
#include <optional>
#include <string>

#include "llm/data/dataset.h"

namespace llm::data {

/// What a file's samples depend on, as a SHA-256: the bytes of the file and of the tokenizer.json,
/// the end token, the limits, the format and its columns, and Sherd's rule for prompts.
std::string token_key(const DataFile& file, const text::PromptEncoder& encoder, const Limit& limit);

/// A folder of tokenized files, one `<key>.tokens` each: what a run has encoded, the next one maps
/// into memory. Processes may share the folder: a file appears whole, under its name, or not at
/// all; one that is damaged counts as absent. Files are never removed.
class TokenCache {
 public:
  /// `setting` is data.cache: a folder (made when something is written), "none", or empty for
  /// `sherd/tokens` in $XDG_CACHE_HOME, else in ~/.cache; without those two there is no cache.
  explicit TokenCache(const std::string& setting);

  /// Empty: there is no cache.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The samples of a key, mapped from the file, whose digest has been checked; `name` becomes the
  /// report's. Memory: shared with every process that maps it. If the file becomes shorter later,
  /// reading samples throws sherd::Error(StorageIo), naming it.
  [[nodiscard]] std::optional<TokenizedFile> find(const std::string& key,
                                                  const std::string& name) const;
  /// Writes the samples under their key. Empty, or why that failed: a run continues without.
  [[nodiscard]] std::string write(const std::string& key, const TokenizedFile& tokenized) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace llm::data
