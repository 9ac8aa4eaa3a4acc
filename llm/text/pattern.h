#pragma once
// Regular expressions that people write for names of modules.

#include <memory>
#include <string>
#include <string_view>

struct sherd_pattern;

namespace llm::text {

/// A regular expression in the syntax of Python's `re`, lookarounds included.
class Pattern {
 public:
  /// Throws sherd::Error(BadData) with the reason if `source` is none.
  explicit Pattern(const std::string& source);

  /// True if it matches all of `text`: Python's `re.fullmatch`. Throws sherd::Error(BadData) for
  /// one that takes too many steps back.
  [[nodiscard]] bool matches_whole(std::string_view text) const;

 private:
  struct Close {
    void operator()(sherd_pattern* pattern) const;
  };
  std::string source_;
  std::shared_ptr<sherd_pattern> pattern_;
};

}  // namespace llm::text
