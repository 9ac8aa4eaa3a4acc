#include "llm/train/checkpoints.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "step-";

bool is_complete(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "manifest.json", ignored);
}

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

// Removes leftovers and the checkpoints of all other steps; anything else in the folder stays.
void remove_but(const fs::path& root, const std::vector<std::int64_t>& kept) {
  std::error_code ignored;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const auto step = step_of(entry.path().filename().string());
    if (is_leftover(entry.path()) ||
        (step && !std::binary_search(kept.begin(), kept.end(), *step))) {
      others.push_back(entry.path());
    }
  }
  for (const fs::path& folder : others) {
    // Without its manifest first: a folder that is half gone must not count as a checkpoint.
    fs::remove(folder / "manifest.json", ignored);
    fs::remove_all(folder, ignored);
  }
}

}  // namespace

fs::path Checkpoints::folder_of(std::int64_t step) const {
  return root_ / name_of(step);
}

std::vector<std::int64_t> Checkpoints::complete_steps() const {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && is_complete(entry.path())) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void Checkpoints::prune(std::int64_t keep, std::int64_t newest,
                        std::optional<std::int64_t> best) const {
  std::vector<std::int64_t> kept = complete_steps();
  const auto later = std::upper_bound(kept.begin(), kept.end(), newest);
  if (later - kept.begin() > keep) {
    kept.erase(
        std::remove_if(kept.begin(), later - keep, [&](std::int64_t step) { return step != best; }),
        later - keep);
  }
  remove_but(root_, kept);
}

void Checkpoints::remove_all() const {
  remove_but(root_, {});
}

void Checkpoints::set_aside(std::int64_t step) const {
  std::error_code ignored;  // if this fails, it is found damaged again next time
  const fs::path aside = folder_of(step).string() + ".damaged";
  fs::remove_all(aside, ignored);
  fs::rename(folder_of(step), aside, ignored);
}

std::vector<fs::path> checkpoints_at(const std::string& path, const std::string& key) {
  if (is_complete(path)) {
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

}  // namespace llm::train
