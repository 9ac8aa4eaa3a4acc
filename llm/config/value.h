#pragma once
// Kinds of values: how each is read from TOML or a flag, bounded and printed. A new kind is a new
// function here; nothing else knows which kinds there are.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "llm/config/measures.h"

namespace llm::config {

struct ModuleChoice;

/// What stands behind a flag, which says nothing of its type.
struct FlagText {
  std::string text;
};

/// A value as given; std::monostate for what no key can hold.
using Raw = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                         std::vector<double>, std::vector<std::string>, FlagText>;

/// A string or number as text: `0`, `1.5`, the string itself; empty for others.
[[nodiscard]] std::string raw_text(const Raw& raw);

/// The numbers a value may hold.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  ///< `least` itself is not allowed
  bool below_most = false;   ///< `most` itself is not allowed

  [[nodiscard]] bool holds(double value) const;
  /// " of at least 1", " from 0 to 8", " above 0"; empty if there is no bound.
  [[nodiscard]] std::string text() const;
};

/// A value in a RunConfig, which must outlive it, and how it is written.
struct Value {
  std::string kind;                             ///< what it must be: "an integer of at least 1"
  std::function<std::string()> text;            ///< as TOML: `"full_shard"`, `[0.9, 0.999]`, `true`
  std::function<bool(const Raw&)> set;          ///< false, and no change, for what it cannot hold
  std::vector<std::string> planned_words = {};  ///< of what does not exist yet
};

/// An integer; one stored in an int is bounded by its range, so that nothing is narrowed later.
[[nodiscard]] Value integer(std::int64_t& slot, const Range& range);
[[nodiscard]] Value integer(int& slot, const Range& range);
[[nodiscard]] Value number(double& slot, const Range& range);
[[nodiscard]] Value flag(bool& slot);
/// Two numbers, as a flag "0.9,0.95".
[[nodiscard]] Value two_numbers(std::array<double, 2>& slot, const Range& range);
[[nodiscard]] Value string(std::string& slot);
/// Any number of strings without commas, as a flag "a,b".
[[nodiscard]] Value strings(std::vector<std::string>& slot);
/// Any number of integers, as a flag "0,1".
[[nodiscard]] Value integers(std::vector<std::int64_t>& slot, const Range& range);
/// A list of names, or one string, which is a pattern. A flag of names alone, with commas between
/// them, is a list.
[[nodiscard]] Value names_or_pattern(ModuleChoice& slot);
/// A number, or a word for none.
[[nodiscard]] Value integer_or(const std::string& word, std::optional<std::int64_t>& slot,
                               const Range& range);
[[nodiscard]] Value integer_or(const std::string& word, std::optional<int>& slot,
                               const Range& range);
[[nodiscard]] Value number_or(const std::string& word, std::optional<double>& slot,
                              const Range& range);
[[nodiscard]] Value duration_or(const std::string& word,
                                std::optional<std::chrono::milliseconds>& slot,
                                std::chrono::milliseconds least);
/// "none", or a share of at most one half such as "1 %" or 0.01; none is 0.
[[nodiscard]] Value share_or_none(double& slot);
[[nodiscard]] Value every(Every& slot);
[[nodiscard]] Value memory_size(MemorySize& slot);
[[nodiscard]] Value step_span(StepSpan& slot);
/// "none", "host", or "disk:FOLDER", of which the folder is kept.
[[nodiscard]] Value host_or_disk_folder(bool& on_host, std::string& folder);
/// "none" or "host".
[[nodiscard]] Value host_or_none(bool& on_host);
[[nodiscard]] Value warmup(Warmup& slot);

/// A word in lower case, with _ for -: "full_shard" of "FULL-SHARD".
[[nodiscard]] std::string with_underscores(const std::string& word);

/// How the words of a choice are compared: with_underscores(), and dtypes by their long names. So
/// "bf16" is "bfloat16".
[[nodiscard]] std::string spelling(const std::string& word);

/// One of some words, by the position of each. Any spelling of a word is accepted.
[[nodiscard]] Value choice_of(std::vector<std::string> words, std::function<std::size_t()> get,
                              std::function<void(std::size_t)> set,
                              std::vector<std::string> planned_words);

/// A word and the enumerator that it means.
template <class Enum>
struct Word {
  std::string word;
  Enum value;
};

template <class Enum>
[[nodiscard]] Value choice(Enum& slot, const std::vector<Word<Enum>>& words,
                           std::vector<std::string> planned_words = {}) {
  std::vector<std::string> names;
  for (const Word<Enum>& word : words) {
    names.push_back(word.word);
  }
  const auto get = [&slot, words] {
    std::size_t position = 0;
    while (words[position].value != slot) {
      ++position;
    }
    return position;
  };
  const auto set = [&slot, words](std::size_t position) { slot = words[position].value; };
  return choice_of(std::move(names), get, set, std::move(planned_words));
}

}  // namespace llm::config
