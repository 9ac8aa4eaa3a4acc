#include "llm/config/toml_nodes.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "llm/config/toml_file.h"

namespace llm::config {

std::optional<std::string> toml_contents(const std::filesystem::path& file,
                                         std::vector<std::string>& faults) {
  std::error_code ignored;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kLargestFile_bytes + 1, '\0');
  if (!stream || std::filesystem::is_directory(file, ignored)) {
    const std::string why = stream ? "is a folder" : std::strerror(errno);
    faults.push_back(file.string() + ": cannot be read: " + why +
                     ". Give the path of a TOML file; recipes/ has some");
    return std::nullopt;
  }
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kLargestFile_bytes) {
    faults.push_back(file.string() + ": larger than 1 MiB: not a configuration file");
    return std::nullopt;
  }
  return text;
}

Raw raw_of(const toml::node& node) {
  if (const auto* value = node.as_integer()) {
    return value->get();
  }
  if (const auto* value = node.as_floating_point()) {
    return value->get();
  }
  if (const auto* value = node.as_boolean()) {
    return value->get();
  }
  if (const auto* value = node.as_string()) {
    return value->get();
  }
  const toml::array* array = node.as_array();
  std::vector<std::string> strings;
  for (std::size_t i = 0; array != nullptr && i < array->size() && (*array)[i].is_string(); ++i) {
    strings.push_back(*(*array)[i].value<std::string>());
  }
  if (!strings.empty() && strings.size() == array->size()) {
    return strings;
  }
  std::vector<double> numbers;
  for (std::size_t i = 0; array != nullptr && i < array->size() && (*array)[i].is_number(); ++i) {
    numbers.push_back(*(*array)[i].value<double>());
  }
  return array != nullptr && numbers.size() == array->size() ? Raw(numbers) : Raw();
}

}  // namespace llm::config
