#pragma once

#include <cstdint>
#include <filesystem>

#include "files/input.h"
#include "llm/text/squad.h"

namespace llm::text {

inline QuestionFile read_squad(const std::filesystem::path& path) {
  return parse_squad(sherd::files::read_file(path.string(), std::uint64_t{1} << 30), path.string());
}

}  // namespace llm::text
