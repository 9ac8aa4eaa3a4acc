#include "llm/text/json_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "sherd/error.h"

namespace llm::text {

std::string read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw sherd::Error(sherd::ExitCode::InputMissing, path.string() + ": is a folder, not a file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  if (file) {
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (!file || file.bad()) {
    const std::string why = errno != 0 ? std::strerror(errno) : "cannot be read";
    throw sherd::Error(sherd::ExitCode::InputMissing, path.string() + ": " + why);
  }
  return bytes;
}

nlohmann::json parse_json(const std::string& bytes, const std::string& name) {
  if (bytes.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw sherd::Error(sherd::ExitCode::BadData, name + ": is empty");
  }
  try {
    return nlohmann::json::parse(bytes);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …" without its first word.
    const std::string what = error.what();
    const std::size_t start = what.find("] ");
    throw sherd::Error(sherd::ExitCode::BadData,
                       name + ": " + (start == std::string::npos ? what : what.substr(start + 2)));
  }
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

}  // namespace llm::text
