#include "app/numbers.h"

#include <cmath>
#include <string>

#include <fmt/core.h>

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

CLI::Validator at_least_zero() {
  return number_that([](double value) { return value >= 0; }, "a number of at least 0");
}

}  // namespace app
