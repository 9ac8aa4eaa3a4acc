#include "llm/text/text_stream.h"

#include <span>
#include <string_view>

namespace llm::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
// Tokens are forgotten when so many were returned, but for the last ones.
constexpr std::size_t kMostKept = 64;
constexpr std::size_t kContext = 16;

}  // namespace

std::string TextStream::take(TokenId token) {
  kept_.push_back(token);
  return new_text(/*at_end=*/false);
}

std::string TextStream::rest() {
  return new_text(/*at_end=*/true);
}

std::string TextStream::new_text(bool at_end) {
  const std::string told = tokenizer_.decode(std::span(kept_).first(told_));
  const std::string text = tokenizer_.decode(kept_);
  const bool is_within_character = text.ends_with(kReplacement);
  if (text.size() <= told.size() || (is_within_character && !at_end)) {
    return "";
  }
  told_ = kept_.size();
  if (kept_.size() >= kMostKept) {
    kept_.erase(kept_.begin(), kept_.end() - kContext);
    told_ = kept_.size();
  }
  return text.substr(told.size());
}

}  // namespace llm::text
