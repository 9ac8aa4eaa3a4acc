#include "llm/train/output_folder.h"

#include <cstdlib>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "files/output.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::train {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void cannot_write(const std::string& what, const fs::path& path,
                               const std::string& why, const char* key) {
  throw sherd::Error(sherd::ExitCode::CannotWrite,
                     fmt::format("cannot write {} '{}': {}. Set {} to a place that can be written.",
                                 what, path.string(), why, key));
}

// Empty, or why no file can be made in the folder.
std::string fault_of_folder(const fs::path& folder) {
  std::string name = (folder / ".try-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file < 0) {
    return std::strerror(errno);
  }
  ::close(file);
  ::unlink(name.c_str());
  return "";
}

// The same for a file that may exist: a log that is continued, or a device.
std::string fault_of_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return fault_of_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  if (fs::is_fifo(path, ignored)) {
    return "";  // its reader would take the end of this try for the end of the log
  }
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return std::strerror(errno);
  }
  ::close(file);
  return "";
}

}  // namespace

fs::path log_path(const config::RunConfig& config) {
  const std::string path = config::jsonl_path(config.log);
  return path.empty() ? fs::path(config.train.output) / "log.jsonl" : fs::path(path);
}

std::string summary_path(const std::string& output) {
  return (fs::path(output) / "summary.json").string();
}

void try_output(const config::RunConfig& config) {
  std::error_code ignored;
  const fs::path output = config.train.output;
  const fs::path checkpoints = output / "checkpoints";
  for (const fs::path& folder : {output, checkpoints}) {
    const bool there = folder == output || fs::exists(folder, ignored);
    if (const std::string why = there ? fault_of_folder(folder) : ""; !why.empty()) {
      cannot_write("to the output folder", folder, why, "train.output");
    }
  }
  if (const std::string why = fault_of_file(log_path(config)); !why.empty()) {
    cannot_write("the log", log_path(config), why, "log.sink[0].path");
  }
}

namespace {

// Folders that are made for a trial, and removed after it.
class TrialFolders {
 public:
  explicit TrialFolders(const fs::path& folder) {
    std::error_code fault;
    std::vector<fs::path> missing;
    for (fs::path path = fs::absolute(folder / "").parent_path();
         !fs::exists(path, fault) && path.has_relative_path(); path = path.parent_path()) {
      missing.push_back(path);
    }
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
      fs::create_directory(*path, fault);
      if (fault) {
        remove();
        cannot_write("to the output folder", folder, fault.message(), "train.output");
      }
      made_.push_back(*path);
    }
  }
  TrialFolders(const TrialFolders&) = delete;
  TrialFolders& operator=(const TrialFolders&) = delete;
  ~TrialFolders() { remove(); }

 private:
  void remove() {
    std::error_code ignored;
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
      fs::remove(*path, ignored);  // only where it is empty
    }
    made_.clear();
  }

  std::vector<fs::path> made_;
};

}  // namespace

void try_planned_output(const config::RunConfig& config) {
  const TrialFolders folders(config.train.output);
  try_output(config);
}

void write_bad_samples(const std::string& output, const std::vector<text::BadSample>& bad,
                       const std::function<void(const std::string& line)>& say) {
  const fs::path path = fs::path(output) / "bad_samples.jsonl";
  if (bad.empty()) {
    std::error_code ignored;
    fs::remove(path, ignored);
    return;
  }
  sherd::files::write_file(path.string(), text::to_jsonl(bad));
  say(fmt::format("{} bad sample{} skipped, listed in {}; the first: {}: {}", bad.size(),
                  bad.size() == 1 ? "" : "s", path.string(), text::printable(bad.front().source),
                  bad.front().text()));
}

void write_config(const config::RunConfig& config) {
  const fs::path path = fs::path(config.train.output) / "config.toml";
  try {
    sherd::files::write_file(path.string(), config::to_toml(config));
  } catch (const sherd::Error& error) {
    cannot_write("to the output folder", config.train.output, error.what(), "train.output");
  }
}

}  // namespace llm::train
