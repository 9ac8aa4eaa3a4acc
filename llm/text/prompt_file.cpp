#include "llm/text/prompt_file.h"

#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/other_kind.h"
#include "llm/text/json_numbers.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::uint64_t kLargestFile_bytes = std::uint64_t{1} << 30;

std::string prompt_in(const std::string& line, const std::string& place) {
  const auto object = parse_data_json(line, place);
  const auto found = object.is_object() ? object.find("prompt") : object.end();
  if (found == object.end() || !found->is_string()) {
    throw Error(ExitCode::BadData, place + ": should be an object with a string `prompt`");
  }
  return found->get<std::string>();
}

std::string checked_text(const std::string& line, const std::string& place) {
  if (const auto byte = first_byte_without_utf8(line)) {
    throw Error(
        ExitCode::BadData,
        fmt::format("{}: not UTF-8 at byte {} of the line: save the file as UTF-8", place, *byte));
  }
  return line;
}

// The bytes of a file, without a byte order mark.
std::string text_of(const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  std::string bytes = sherd::files::read_file(path, kLargestFile_bytes);
  sherd::files::refuse_utf16(path, bytes);
  return bytes.starts_with(kByteOrderMark) ? bytes.substr(kByteOrderMark.size()) : bytes;
}

}  // namespace

std::vector<GivenPrompt> read_prompts(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  const bool json = extension == ".jsonl";
  if (!json && extension != ".txt") {
    throw Error(ExitCode::Usage,
                fmt::format("--prompts {}: give a .txt file with one prompt per line, or a .jsonl "
                            "file with one object with `prompt` per line",
                            path));
  }
  std::istringstream lines(text_of(path));
  std::vector<GivenPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      const std::string place = fmt::format("{}:{}", path, number);
      prompts.push_back({place, json ? prompt_in(line, place) : checked_text(line, place)});
    }
  }
  if (prompts.empty()) {
    throw Error(ExitCode::BadData, path + ": contains no prompt");
  }
  return prompts;
}

}  // namespace llm::text
