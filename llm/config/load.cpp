#include "llm/config/flags.h"
#include "llm/config/reading.h"
#include "llm/config/toml_file.h"
#include "sherd/error.h"

namespace llm::config {
namespace {

/// What only shows once everything is read, each fault at the place where its key was given.
void check_whole(Reading& reading) {
  for (const Fault& fault : validate(reading.config)) {
    const auto place = reading.places.find(fault.key);
    const bool given = place != reading.places.end();
    if (reading.faulty_keys.contains(fault.key) || (!given && !reading.file_was_read)) {
      continue;
    }
    reading.faults.push_back((given ? place->second + ": " : "") + fault.text);
  }
}

std::string joined(const std::vector<std::string>& faults) {
  if (faults.size() == 1) {
    return faults.front();
  }
  std::string text = std::to_string(faults.size()) + " faults in the configuration:";
  for (const std::string& fault : faults) {
    text += "\n  " + fault;
  }
  return text;
}

}  // namespace

RunConfig load(const std::optional<std::filesystem::path>& file,
               std::span<const std::string> flags) {
  Reading reading;
  if (file) {
    read_toml(*file, reading);
  }
  read_flags(flags, reading);
  check_whole(reading);
  if (!reading.faults.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage, joined(reading.faults));
  }
  return reading.config;
}

}  // namespace llm::config
