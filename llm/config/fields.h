#pragma once
// The list of all keys, from which parsing, flags, printing and the reference page are made.

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "llm/config/run_config.h"

namespace llm::config {

/// An enum member of a RunConfig by the position of its value among `Field::choices`.
struct Choice {
  std::function<std::size_t()> get;
  std::function<void(std::size_t)> set;
};

/// The numbers a field may hold.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  ///< `least` itself is not allowed
  bool below_most = false;   ///< `most` itself is not allowed

  [[nodiscard]] bool holds(double value) const;
  /// " of at least 1", " from 0 to 8", " above 0"; empty if there is no bound.
  [[nodiscard]] std::string text() const;
};

/// One key: where its value lies in one RunConfig, and all that is said about it.
struct Field {
  using Slot =
      std::variant<std::int64_t*, double*, bool*, std::string*, std::array<double, 2>*, Choice>;

  std::string name;
  Slot slot;
  std::string doc;                        ///< one line
  std::string unit = {};                  ///< of a number; empty for none
  Range range = {};                       ///< of a number
  std::vector<std::string> choices = {};  ///< of a Choice
  bool required = false;                  ///< of a string: may not stay empty
  std::string section = {};               ///< filled in by `fields_of`

  [[nodiscard]] std::string key() const { return section + "." + name; }
  /// What the value must be, with its range: "an integer of at least 1".
  [[nodiscard]] std::string expectation() const;
};

/// A section of the file and what it is about.
struct Section {
  std::string name;
  std::string doc;
};

/// In the order of the file.
[[nodiscard]] const std::vector<Section>& sections();

/// All keys, section by section. The fields point into `config`, which must outlive them.
[[nodiscard]] std::vector<Field> fields_of(RunConfig& config);

}  // namespace llm::config
