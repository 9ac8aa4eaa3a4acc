#include "llm/text/prompt_file.h"

#include <cstdint>
#include <filesystem>
#include <sstream>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/json.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::uint64_t kLargestFile_bytes = std::uint64_t{1} << 30;

std::string prompt_in(const std::string& line, const std::string& place) {
  const auto object = sherd::files::parse_json(line, place);
  const auto found = object.is_object() ? object.find("prompt") : object.end();
  if (found == object.end() || !found->is_string()) {
    throw Error(ExitCode::BadData, place + ": should be an object with a string `prompt`");
  }
  return found->get<std::string>();
}

}  // namespace

std::vector<GivenPrompt> read_prompts(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  const bool json = extension == ".jsonl";
  if (!json && extension != ".txt") {
    throw Error(ExitCode::Usage,
                fmt::format("--prompts {}: give a .txt file, a prompt a line, or a .jsonl file, an "
                            "object with `prompt` a line",
                            path));
  }
  std::istringstream lines(sherd::files::read_file(path, kLargestFile_bytes));
  std::vector<GivenPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      const std::string place = fmt::format("{}:{}", path, number);
      prompts.push_back({place, json ? prompt_in(line, place) : line});
    }
  }
  if (prompts.empty()) {
    throw Error(ExitCode::BadData, path + ": there is no prompt in it");
  }
  return prompts;
}

}  // namespace llm::text
