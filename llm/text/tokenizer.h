#pragma once
// The tokenizer of a Hugging Face model folder: text to ids and back. C++ face of the Rust crate in
// text/.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llm::text {

using TokenId = std::int32_t;

/// The bytes [begin, end) of a text.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// An encoded text: ids, and the bytes each came from ([0, 0) for a token that the tokenizer's
/// template added).
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<ByteRange> ranges;
};

/// Whether the tokenizer's template adds its tokens (such as `<s>` in front) to an encoded text.
enum class SpecialTokens { Add, Leave };

/// A tokenizer. Cheap to copy (copies share one); const functions may be called by several threads
/// at once.
class Tokenizer {
 public:
  /// Reads `tokenizer.json` of a model folder, and, where they are there, which tokens end a
  /// text: `tokenizer_config.json`, else `special_tokens_map.json` (`eos_token`), else
  /// `generation_config.json`, else `config.json` (`eos_token_id`). Throws sherd::Error:
  /// InputMissing without a tokenizer.json; BadData, naming file and place, for one that cannot be
  /// right.
  static Tokenizer from_folder(const std::filesystem::path& folder);

  /// Encodes a text. Throws sherd::Error BadData, naming the byte, if it is not UTF-8.
  [[nodiscard]] Encoding encode(std::string_view text,
                                SpecialTokens special = SpecialTokens::Add) const;
  /// Encodes a rendered conversation: without adding special tokens. The ranges of tokens include
  /// the blanks in them, also where the tokenizer's trim_offsets is on. Throws as encode().
  [[nodiscard]] Encoding encode_whole(std::string_view text) const;
  /// The text of ids. Ids that no token has (an embedding may have more rows than there are tokens)
  /// give nothing.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const;

  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;

  /// The added tokens that are special, by id: texts that stand for one token wherever they occur.
  [[nodiscard]] std::vector<std::string> special_tokens() const;

  /// Whether every text may be encoded in two parts where this token begins: it is an added token
  /// that is found before the text is normalised, and takes nothing of what stands before it.
  [[nodiscard]] bool is_boundary(TokenId id) const;

  /// The largest id + 1, added tokens included.
  [[nodiscard]] std::int64_t vocabulary_size() const;
  /// Throws sherd::Error BadData if a model with that many rows of embedding has no row for some id
  /// of this tokenizer.
  void check_vocabulary(std::int64_t embedding_rows) const;

  /// The token that ends an answer in training: the tokenizer's `eos_token`, else the first id that
  /// stops generation. Throws sherd::Error BadData, saying where it was looked for, if the folder
  /// names none.
  [[nodiscard]] TokenId end_id() const;
  /// The ids that stop generation, ascending: `eos_token_id` (one id or a list) of
  /// generation_config.json, else of config.json; and `end_id()`.
  [[nodiscard]] const std::vector<TokenId>& stop_ids() const;
  /// The SHA-256 of the bytes of tokenizer.json, as they were read.
  [[nodiscard]] const std::string& sha256() const;
  /// The folder it was read from, for messages.
  [[nodiscard]] const std::filesystem::path& folder() const;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// Compares a tokenizer with recorded encodings. A line of the file is an object of JSON with
/// `text`, `ids` (no special tokens added) and `ids_with_special`. Returns one of its own: the
/// number of `cases`, how many `differ`, and the `first` that does (null if none). Throws
/// sherd::Error BadData with the line of a wrong case, or for a file without cases.
[[nodiscard]] std::string compare_with_recorded(const Tokenizer& tokenizer,
                                                const std::string& cases_path);

}  // namespace llm::text
