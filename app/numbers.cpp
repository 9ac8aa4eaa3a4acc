#include "app/numbers.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "llm/config/value.h"

namespace app {

namespace {

CLI::Validator number_that(bool (*is_right)(double), const std::string& words) {
  const auto fault = [is_right, words](const std::string& text) {
    double value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return is_number && is_right(value) ? "" : fmt::format("{} must be {}", text, words);
  };
  return {fault, "", ""};
}

}  // namespace

CLI::Validator above_zero() {
  return number_that([](double value) { return value > 0; }, "a number above 0");
}

CLI::Validator above_zero_or_none() {
  const auto fault = [number = above_zero()](std::string& text) {
    return text == "none" || number(text).empty() ? "" : text + " must be a number above 0 or none";
  };
  return {fault, "", ""};
}

CLI::Validator at_least_zero() {
  return number_that([](double value) { return value >= 0; }, "a number of at least 0");
}

CLI::Validator from_zero_to_one() {
  return number_that([](double value) { return value >= 0 && value <= 1; }, "a number from 0 to 1");
}

CLI::Validator within(std::int64_t least, std::int64_t most) {
  return CLI::Range(least, most).description("");
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  const auto find_word = [words](std::string& text) -> std::string {
    for (const std::string& word : words) {
      if (llm::config::spelling(word) == llm::config::spelling(text)) {
        text = word;
        return "";
      }
    }
    return fmt::format("{} must be one of {}", text, fmt::join(words, ", "));
  };
  return option->transform(CLI::Validator(find_word, "", ""))
      ->type_name(fmt::format("{}", fmt::join(words, "|")));
}

}  // namespace app
