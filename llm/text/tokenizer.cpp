#include "llm/text/tokenizer.h"

#include <algorithm>

#include <fmt/core.h>
#include <malloc.h>
#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/other_kind.h"
#include "files/sha256.h"
#include "llm/text/c_interface.h"
#include "llm/text/special_tokens.h"
#include "sherd/error.h"

// Of tcmalloc's malloc_extension_c.h; null in a program without it.
extern "C" void MallocExtension_ReleaseFreeMemory() __attribute__((weak));

namespace llm::text {
namespace {

// The largest tokenizer.json in use has about 35 MB.
constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{128} << 20;

struct CloseTokenizer {
  void operator()(sherd_tokenizer* handle) const { sherd_text_close(handle); }
};

// Frees what the Rust side allocated.
struct FreeEncoding {
  void operator()(sherd_text_encoding* raw) const { sherd_text_free_encoding(raw); }
};

Encoding to_encoding(const sherd_text_encoding& raw) {
  Encoding encoding;
  encoding.ids.assign(raw.ids, raw.ids + raw.count);
  encoding.ranges.reserve(raw.count);
  for (std::size_t i = 0; i < raw.count; ++i) {
    encoding.ranges.push_back({static_cast<std::int64_t>(raw.begin_bytes[i]),
                               static_cast<std::int64_t>(raw.end_bytes[i])});
  }
  return encoding;
}

// A list that the crate gives as JSON.
template <typename Item, typename Give>
std::vector<Item> list_of(const Give& give, const sherd_tokenizer& tokenizer) {
  char* text = nullptr;
  std::size_t length_bytes = 0;
  checked([&](char** error) { return give(&tokenizer, &text, &length_bytes, error); });
  const OwnedString owned(text);
  return nlohmann::json::parse(std::string_view(owned.get(), length_bytes))
      .get<std::vector<Item>>();
}

// Reading a tokenizer makes several times what stays, which malloc would keep: of Llama 3's 100 MiB
// in each rank. The program's malloc is tcmalloc (docs/design/allocator.md).
void give_back_free_memory() {
  if (MallocExtension_ReleaseFreeMemory != nullptr) {
    MallocExtension_ReleaseFreeMemory();
  } else {
    ::malloc_trim(0);
  }
}

}  // namespace

struct Tokenizer::State {
  std::filesystem::path folder;
  std::unique_ptr<sherd_tokenizer, CloseTokenizer> handle;
  SpecialIds special;
  std::vector<TokenId> boundaries;  // ascending
  std::string sha256;

  // What goes before a message about a text.
  [[nodiscard]] std::string name() const { return "tokenizer of " + folder.string() + ": "; }
};

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const auto state = std::make_shared<State>();
  state->folder = folder;
  sherd_tokenizer* handle = nullptr;
  const std::string path = (folder / "tokenizer.json").string();
  const std::string bytes = sherd::files::read_file(path, kMaxTokenizerBytes);
  sherd::files::refuse_utf16(path, bytes);
  checked(
      [&](char** error) { return sherd_text_open(path.c_str(), slice_of(bytes), &handle, error); });
  state->handle.reset(handle);
  state->sha256 = sherd::files::sha256_of(bytes);
  state->boundaries = list_of<TokenId>(sherd_text_boundary_ids, *state->handle);
  std::sort(state->boundaries.begin(), state->boundaries.end());
  Tokenizer tokenizer(state);
  state->special = read_special_ids(
      folder, [&](const std::string& token) { return tokenizer.token_to_id(token); });
  give_back_free_memory();
  return tokenizer;
}

Encoding Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  const bool add_special = special == SpecialTokens::Add;
  sherd_text_encoding raw;
  checked(
      [&](char** error) {
        return sherd_text_encode(state_->handle.get(), slice_of(text), add_special, &raw, error);
      },
      state_->name());
  const std::unique_ptr<sherd_text_encoding, FreeEncoding> owned(&raw);
  return to_encoding(raw);
}

Encoding Tokenizer::encode_whole(std::string_view text) const {
  sherd_text_encoding raw;
  checked(
      [&](char** error) {
        return sherd_text_encode_whole(state_->handle.get(), slice_of(text), &raw, error);
      },
      state_->name());
  const std::unique_ptr<sherd_text_encoding, FreeEncoding> owned(&raw);
  return to_encoding(raw);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  // Nor is a negative id a token: as unsigned it is beyond every vocabulary.
  const std::vector<std::uint32_t> unsigned_ids(ids.begin(), ids.end());
  char* text = nullptr;
  std::size_t length_bytes = 0;
  checked(
      [&](char** error) {
        return sherd_text_decode(state_->handle.get(), unsigned_ids.data(), unsigned_ids.size(),
                                 skip_special_tokens, &text, &length_bytes, error);
      },
      state_->name());
  const OwnedString owned(text);
  return {owned.get(), length_bytes};
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  std::int64_t id = -1;
  checked(
      [&](char** error) {
        return sherd_text_token_to_id(state_->handle.get(), slice_of(token), &id, error);
      },
      state_->name());
  return id < 0 ? std::nullopt : std::optional(static_cast<TokenId>(id));
}

std::vector<std::string> Tokenizer::special_tokens() const {
  return list_of<std::string>(sherd_text_special_tokens, *state_->handle);
}

bool Tokenizer::is_boundary(TokenId id) const {
  return std::binary_search(state_->boundaries.begin(), state_->boundaries.end(), id);
}

std::int64_t Tokenizer::vocabulary_size() const {
  return static_cast<std::int64_t>(sherd_text_vocabulary_size(state_->handle.get()));
}

void Tokenizer::check_vocabulary(std::int64_t embedding_rows) const {
  if (vocabulary_size() > embedding_rows) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: its ids reach {}, and the model's embedding has {} rows "
                                   "(vocab_size), too few by {}: take the tokenizer that belongs "
                                   "to the model",
                                   (folder() / "tokenizer.json").string(), vocabulary_size() - 1,
                                   embedding_rows, vocabulary_size() - embedding_rows));
  }
}

TokenId Tokenizer::end_id() const {
  if (!state_->special.end) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        folder().string() +
            ": no token that ends an answer: neither eos_token in tokenizer_config.json or "
            "special_tokens_map.json, nor eos_token_id in generation_config.json or config.json");
  }
  return *state_->special.end;
}

const std::vector<TokenId>& Tokenizer::stop_ids() const {
  return state_->special.stop;
}

const std::string& Tokenizer::sha256() const {
  return state_->sha256;
}

const std::filesystem::path& Tokenizer::folder() const {
  return state_->folder;
}

}  // namespace llm::text
