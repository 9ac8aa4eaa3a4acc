#pragma once
// Messages of layers that speak of configuration keys, in the words of a verb that has flags.

#include <functional>
#include <set>
#include <string>

#include <CLI/CLI.hpp>

namespace app {

/// The flags of a verb without a recipe, in the place of keys of `[data]`.
class FlagWords {
 public:
  explicit FlagWords(const CLI::App& verb);
  /// Replaces keys by the flags that set the same: `data.max_length` becomes `--max-length`, and
  /// `data.on_bad_sample = "skip"` `--on-bad-sample skip`. Keys without such a flag stay.
  [[nodiscard]] std::string in(std::string message) const;
  /// Runs `work`, and throws its sherd::Error with these words.
  int run(const std::function<int()>& work) const;

 private:
  [[nodiscard]] bool has(const std::string& flag) const { return flags_.contains(flag); }

  std::set<std::string> flags_;
};

}  // namespace app
