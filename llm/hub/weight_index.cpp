#include "llm/hub/weight_index.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "llm/hub/repo.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse_index(const std::filesystem::path& index, const std::string& why) {
  throw sherd::Error(sherd::ExitCode::BadData, fmt::format("{}: {}", index.string(), why));
}

}  // namespace

std::set<std::string> weight_files(const std::filesystem::path& index) {
  const auto content = sherd::files::read_json(index.string(), kMaxIndexBytes);
  const auto map = content.is_object() ? content.find("weight_map") : content.end();
  if (map == content.end() || !map->is_object() || map->empty()) {
    refuse_index(index, "no index of weights: there is no object 'weight_map' with tensors in it");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      refuse_index(index, "the file of a tensor in 'weight_map' is not a string");
    }
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    if (!is_safe_path(name) || name.find('/') != std::string::npos ||
        !name.ends_with(".safetensors")) {
      refuse_index(index, fmt::format("{} is not a safetensors file next to it",
                                      nlohmann::json(name).dump()));
    }
  }
  return names;
}

}  // namespace llm::hub
