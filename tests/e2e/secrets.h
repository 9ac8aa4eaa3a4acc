#pragma once
// Looks for secrets where none may be.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/training.h"

namespace sherd::test {

/// `text` in base64, from a byte of it on: as it would stand in another text's.
inline std::string base64_inside(const std::string& text, std::size_t from) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string digits;
  for (std::size_t i = from; i + 3 <= text.size(); i += 3) {
    const auto byte = [&](std::size_t k) { return std::uint32_t(std::uint8_t(text[i + k])); };
    const std::uint32_t three = byte(0) << 16U | byte(1) << 8U | byte(2);
    for (const unsigned shift : {18U, 12U, 6U, 0U}) {
      digits.push_back(kDigits[three >> shift & 63U]);
    }
  }
  return digits;
}

/// A secret as it is, and in base64 as part of any text.
inline std::vector<std::string> forms_of(const std::string& secret) {
  return {secret, base64_inside(secret, 0), base64_inside(secret, 1), base64_inside(secret, 2)};
}

inline bool holds_secret(const std::string& text, const std::string& secret) {
  const std::vector<std::string> forms = forms_of(secret);
  return std::any_of(forms.begin(), forms.end(),
                     [&](const std::string& form) { return text.find(form) != std::string::npos; });
}

/// What all processes of this host were called with.
inline std::string command_lines() {
  std::string lines;
  for (const auto& process : fs::directory_iterator("/proc")) {
    const std::string id = process.path().filename();
    if (id.find_first_not_of("0123456789") == std::string::npos) {
      std::string line = read_file(process.path() / "cmdline");
      std::replace(line.begin(), line.end(), '\0', ' ');
      lines += line + "\n";
    }
  }
  return lines;
}

}  // namespace sherd::test
