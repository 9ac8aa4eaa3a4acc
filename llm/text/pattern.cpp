#include "llm/text/pattern.h"

#include "llm/text/c_interface.h"

namespace llm::text {

void Pattern::Close::operator()(sherd_pattern* pattern) const {
  sherd_text_pattern_close(pattern);
}

Pattern::Pattern(const std::string& source) : source_(source) {
  sherd_pattern* pattern = nullptr;
  checked([&](char** error) { return sherd_text_pattern_open(slice_of(source), &pattern, error); },
          "\"" + source + "\" is no regular expression: ");
  pattern_ = std::shared_ptr<sherd_pattern>(pattern, Close());
}

bool Pattern::matches_whole(std::string_view text) const {
  bool matches = false;
  checked(
      [&](char** error) {
        return sherd_text_pattern_matches_whole(pattern_.get(), slice_of(text), &matches, error);
      },
      "the regular expression \"" + source_ + "\" on \"" + std::string(text) + "\": ");
  return matches;
}

}  // namespace llm::text
