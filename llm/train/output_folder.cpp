#include "llm/train/output_folder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "files/output.h"
#include "llm/eval/prediction_files.h"
#include "llm/setup/agreement.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::train {

namespace fs = std::filesystem;

namespace {

// Files that a run leaves in its folder, in addition to the lock, folders and predictions.
constexpr std::array<const char*, 6> kFiles = {"config.toml",  "log.jsonl",   "plan.json",
                                               "summary.json", "export.json", "bad_samples.jsonl"};

[[noreturn]] void cannot_write(const std::string& what, const fs::path& path,
                               const std::string& why, const char* key) {
  throw sherd::Error(sherd::ExitCode::CannotWrite,
                     fmt::format("cannot write {} '{}': {}. Set {} to a place that can be written.",
                                 what, path.string(), why, key));
}

// A new file that exists for the lifetime of this object.
class Mark {
 public:
  explicit Mark(const fs::path& folder) : path_((folder / ".try-XXXXXX").string()) {
    const int file = ::mkstemp(path_.data());
    if (file < 0) {
      fault_ = std::strerror(errno);
      return;
    }
    ::close(file);
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    if (fault_.empty()) {
      ::unlink(path_.c_str());
    }
  }
  // Empty, or why it could not be made.
  [[nodiscard]] const std::string& fault() const { return fault_; }
  [[nodiscard]] std::string name() const { return fs::path(path_).filename().string(); }

 private:
  std::string path_;
  std::string fault_;
};

// Empty, or why no file can be made in the folder.
std::string fault_of_folder(const fs::path& folder) {
  return Mark(folder).fault();
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

// Where checkpoints will go.
void try_folders(const fs::path& output) {
  std::error_code ignored;
  const fs::path checkpoints = output / "checkpoints";
  for (const fs::path& folder : {output, checkpoints}) {
    const bool there = folder == output || fs::exists(folder, ignored);
    if (const std::string why = there ? fault_of_folder(folder) : ""; !why.empty()) {
      cannot_write("to the output folder", folder, why, "train.output");
    }
  }
}

// Network file systems show a new name to other hosts with a delay.
bool is_there_soon(const fs::path& path) {
  constexpr std::chrono::milliseconds kPatience{3000};
  constexpr std::chrono::milliseconds kPause{50};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::error_code ignored;
  while (!fs::exists(path, ignored)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// "'/runs/first' of host node7".
std::string place_of(const fs::path& folder) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("'{}' of host {}", fs::absolute(folder).lexically_normal().string(),
                     host.data());
}

// "summary.json.tmp-4711", "predictions-4.json.tmp-4711".
bool is_temporary(const std::string& name) {
  constexpr std::string_view kMark = ".tmp-";
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string::npos) {
    return false;
  }
  const std::string process = name.substr(mark + kMark.size());
  const std::string file = name.substr(0, mark);
  const bool is_ours = std::find(kFiles.begin(), kFiles.end(), file) != kFiles.end() ||
                       eval::is_predictions_file(file);
  return is_ours && !process.empty() &&
         process.find_first_not_of("0123456789") == std::string::npos;
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
  try_folders(config.train.output);
  std::error_code ignored;
  for (const char* name : kFiles) {
    const fs::path file = fs::path(config.train.output) / name;
    if (fs::is_symlink(file, ignored)) {
      cannot_write("the file", file, "it is a link, and a run does not follow links there",
                   "train.output");
    }
  }
  if (const std::string why = fault_of_file(log_path(config)); !why.empty()) {
    cannot_write("the log", log_path(config), why, "log.sink[0].path");
  }
}

void require_seen_by_all(const fs::path& made, sherd::World& world) {
  const bool seen = is_there_soon(made);
  const std::vector<std::string> places =
      world.all_gather((seen ? "+" : "-") + place_of(made.parent_path()));
  std::vector<int> blind;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].front() == '-') {
      blind.push_back(static_cast<int>(rank));
    }
  }
  setup::on_all_ranks(world, [&] {
    if (world.rank() == 0 && !blind.empty()) {
      throw sherd::Error(
          sherd::ExitCode::RanksDisagree,
          fmt::format("all ranks must see the same train.output, because each writes its part of a "
                      "checkpoint there. Rank 0 wrote into {}, and {} cannot see that: rank {} "
                      "looked in {}. Put train.output on a file system that all hosts share, and "
                      "give its absolute path.",
                      places.front().substr(1), setup::names_of(blind), blind.front(),
                      places[static_cast<std::size_t>(blind.front())].substr(1)));
    }
  });
}

void require_one_output(const config::RunConfig& config, sherd::World& world) {
  const fs::path output = config.train.output;
  std::optional<Mark> mark;
  const std::string name = setup::from_rank_0(world, [&] {
    if (!mark.emplace(output).fault().empty()) {
      cannot_write("to the output folder", output, mark->fault(), "train.output");
    }
    return mark->name();
  });
  require_seen_by_all(output / name, world);
  setup::on_all_ranks(world, [&] { try_folders(output); });
}

void remove_temporary_files(const std::string& output) {
  std::vector<fs::path> left;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(output, ignored)) {
    if (is_temporary(entry.path().filename().string()) && entry.is_regular_file(ignored)) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& file : left) {
    fs::remove(file, ignored);
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

bool if_there_is_room(const std::string& name,
                      const std::function<void(const std::string& line)>& warn,
                      const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const sherd::NoRoom& fault) {
    warn(fmt::format("{} could not be written: {}", name, fault.what()));
    return false;
  }
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
