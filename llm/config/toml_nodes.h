#pragma once
// toml++, as this layer uses it. Included by nothing but the readers of TOML files.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// toml++ 3.3 asserts that a table's name begins well, and only then reports one that does not
// ("[;x]"); with NDEBUG some compilers would take the assertion for granted. So it gets neither.
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "llm/config/value.h"

namespace llm::config {

/// The contents, or nothing after adding to `faults` why they cannot be read. Bounded, since a
/// device has no end.
[[nodiscard]] std::optional<std::string> toml_contents(const std::filesystem::path& file,
                                                       std::vector<std::string>& faults);

/// A value as given; std::monostate for what no key can hold.
[[nodiscard]] Raw raw_of(const toml::node& node);

}  // namespace llm::config
