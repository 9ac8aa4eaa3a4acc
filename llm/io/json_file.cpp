#include "llm/io/json_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "sherd/error.h"

namespace llm::io {
namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::uintmax_t kLargestBytes = 16U << 20U;

std::string read_text(const std::string& path) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) {
    throw Error(ExitCode::InputMissing,
                path + ": no such file; a Hugging Face model folder has one");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(ExitCode::BadData, path + ": not a regular file");
  }
  const auto bytes = std::filesystem::file_size(path, failure);
  if (!failure && bytes > kLargestBytes) {
    throw Error(ExitCode::BadData,
                path + ": " + std::to_string(bytes) + " bytes; expected at most 16 MiB");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(failure ? 0 : bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (failure || !file) {
    throw Error(ExitCode::InputMissing, path + ": cannot be read: " + std::strerror(errno));
  }
  return text;
}

}  // namespace

using Json = nlohmann::ordered_json;

Json read_json_object(const std::string& path) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto no_field_twice = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !names.back().insert(value.get<std::string>()).second) {
      throw Error(ExitCode::BadData,
                  path + ": field \"" + value.get<std::string>() + "\" occurs twice");
    }
    return true;
  };
  const std::string text = read_text(path);
  try {
    Json json = Json::parse(text, no_field_twice);
    if (!json.is_object()) {
      throw Error(ExitCode::BadData, path + ": expected a JSON object, found " + json.type_name());
    }
    return json;
  } catch (const nlohmann::json::exception& fault) {
    throw Error(ExitCode::BadData, path + ": not JSON: " + fault.what());
  }
}

}  // namespace llm::io
