#include "llm/setup/checkpoints.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include <fmt/core.h>

#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::setup {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kDamaged = ".damaged";

std::string name_of(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

// The step in "step-00000120"; nothing for other names, such as "step-00000120.tmp".
std::optional<std::int64_t> step_of(const std::string& name) {
  const std::string digits = name.rfind(kPrefix, 0) == 0 ? name.substr(5) : "";
  const bool numeric =
      !digits.empty() && digits.size() <= 18 &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::int64_t step = numeric ? std::stoll(digits) : 0;
  return numeric && name == name_of(step) ? std::optional(step) : std::nullopt;
}

// What an interrupted save leaves: "step-00000120.tmp", or ".old" for the one it was to replace.
bool is_leftover(const fs::path& folder) {
  const std::string extension = folder.extension().string();
  return (extension == ".tmp" || extension == ".old") && step_of(folder.stem().string());
}

// "step-00000120.damaged".
bool is_set_aside(const fs::path& folder) {
  return folder.extension() == kDamaged && step_of(folder.stem().string());
}

// Removes leftovers and the checkpoints of all other steps; anything else stays. Returns the
// folders that lost a checkpoint and hold other files.
std::vector<fs::path> remove_but(const fs::path& root, const std::vector<std::int64_t>& kept) {
  std::error_code ignored;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const auto step = step_of(entry.path().filename().string());
    if (is_leftover(entry.path()) ||
        (step && !std::binary_search(kept.begin(), kept.end(), *step))) {
      others.push_back(entry.path());
    }
  }
  std::vector<fs::path> stay;
  for (const fs::path& folder : others) {
    const bool holds_checkpoint = sherd::has_checkpoint_files(folder);
    if (holds_checkpoint || is_leftover(folder)) {
      sherd::remove_checkpoint(folder);
    }
    if (holds_checkpoint && fs::exists(folder, ignored)) {
      stay.push_back(folder);
    }
  }
  return stay;
}

}  // namespace

bool is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return !folder.empty() && fs::is_regular_file(folder / "manifest.json", ignored);
}

std::vector<std::int64_t> Checkpoints::steps() const {
  std::vector<std::int64_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      found.push_back(*step);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

fs::path Checkpoints::folder_of(std::int64_t step) const {
  return root_ / name_of(step);
}

std::vector<std::int64_t> Checkpoints::complete_steps() const {
  std::vector<std::int64_t> complete = steps();
  std::erase_if(complete, [&](std::int64_t step) { return !is_complete(step); });
  return complete;
}

std::vector<std::int64_t> Checkpoints::steps_without_manifest(std::int64_t step) const {
  std::vector<std::int64_t> found = steps();
  std::erase_if(found, [&](std::int64_t one) {
    return one <= step || is_complete(one) || !sherd::has_checkpoint_files(folder_of(one));
  });
  return found;
}

std::optional<fs::path> Checkpoints::other_file_after(std::int64_t step) const {
  for (const std::int64_t one : steps()) {
    const auto others =
        one > step ? sherd::names_beside_checkpoint(folder_of(one)) : std::vector<std::string>();
    if (!others.empty()) {
      return folder_of(one) / others.front();
    }
  }
  return std::nullopt;
}

std::vector<fs::path> Checkpoints::prune(std::int64_t keep, std::int64_t newest,
                                         std::optional<std::int64_t> best) const {
  std::vector<std::int64_t> kept = complete_steps();
  const auto later = std::upper_bound(kept.begin(), kept.end(), newest);
  if (later - kept.begin() > keep) {
    kept.erase(
        std::remove_if(kept.begin(), later - keep, [&](std::int64_t step) { return step != best; }),
        later - keep);
  }
  return remove_but(root_, kept);
}

bool Checkpoints::is_complete(std::int64_t step) const {
  return is_checkpoint(folder_of(step));
}

std::int64_t Checkpoints::bytes() const {
  std::int64_t sum = 0;
  std::error_code ignored;
  for (const std::int64_t step : complete_steps()) {
    for (const auto& entry : fs::directory_iterator(folder_of(step), ignored)) {
      const std::uintmax_t size = fs::file_size(entry.path(), ignored);
      sum += ignored ? 0 : static_cast<std::int64_t>(size);
    }
  }
  return sum;
}

bool Checkpoints::make_room(std::int64_t keep, std::int64_t newest,
                            std::optional<std::int64_t> best) const {
  const std::size_t before = complete_steps().size();
  if (is_complete(newest)) {
    static_cast<void>(prune(std::max<std::int64_t>(1, keep - 1), newest, best));
  }
  return complete_steps().size() < before;
}

void Checkpoints::remove_all() const {
  static_cast<void>(remove_but(root_, {}));
}

void Checkpoints::set_aside(const std::vector<std::int64_t>& steps) const {
  std::error_code ignored;  // if this fails, it is found damaged again next time
  std::vector<fs::path> earlier;
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
    if (!steps.empty() && is_set_aside(entry.path())) {
      earlier.push_back(entry.path());
    }
  }
  for (const fs::path& folder : earlier) {
    sherd::remove_checkpoint(folder);
  }
  for (const std::int64_t step : steps) {
    fs::rename(folder_of(step), folder_of(step).string() + kDamaged, ignored);
  }
}

std::vector<fs::path> checkpoints_at(const std::string& path, const std::string& key) {
  if (is_checkpoint(path)) {
    return {path};
  }
  const Checkpoints run{fs::path(path)};
  std::vector<fs::path> folders;
  for (const std::int64_t step : run.complete_steps()) {
    folders.insert(folders.begin(), run.folder_of(step));
  }
  if (folders.empty()) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fmt::format("{}: there is no complete checkpoint in '{}'. Give a folder "
                                   "such as <output>/checkpoints/step-00000120, or a run's output "
                                   "folder.",
                                   key, path));
  }
  return folders;
}

bool is_damage(const sherd::Error& fault) {
  return fault.code() == sherd::ExitCode::BadData ||
         fault.code() == sherd::ExitCode::InputMissing;  // of a file that the manifest names
}

IntactCheckpoint newest_intact(const std::string& path, const std::string& key) {
  const std::vector<fs::path> folders = checkpoints_at(path, key);
  std::vector<std::string> notices;
  std::optional<sherd::Error> first;
  for (const fs::path& folder : folders) {
    try {
      static_cast<void>(sherd::require_checkpoint_files(folder));
      if (!notices.empty()) {
        notices.push_back(fmt::format("using the older one in '{}'", folder.string()));
      }
      return {folder, notices};
    } catch (const sherd::Error& error) {
      if (!is_damage(error)) {
        throw;
      }
      first = first ? first : error;
      notices.push_back(
          fmt::format("the checkpoint in '{}' is damaged: {}", folder.string(), error.what()));
    }
  }
  throw sherd::Error(*first);
}

}  // namespace llm::setup
