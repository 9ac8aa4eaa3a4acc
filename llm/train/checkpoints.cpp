#include "llm/train/checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <system_error>

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
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix, static_cast<long long>(step));
  return name;
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

void Checkpoints::prune(std::int64_t keep, std::int64_t newest) const {
  std::vector<std::int64_t> kept = complete_steps();
  kept.erase(std::upper_bound(kept.begin(), kept.end(), newest), kept.end());
  if (static_cast<std::int64_t>(kept.size()) > keep) {
    kept.erase(kept.begin(), kept.end() - keep);
  }
  std::error_code ignored;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
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

std::optional<fs::path> Checkpoints::resume_from(const std::string& resume) const {
  if (resume == "never") {
    return std::nullopt;
  }
  if (resume == "auto") {
    const auto steps = complete_steps();
    return steps.empty() ? std::nullopt : std::optional<fs::path>(folder_of(steps.back()));
  }
  if (is_complete(resume)) {
    return fs::path(resume);
  }
  const Checkpoints other{fs::path(resume)};
  const auto steps = other.complete_steps();
  if (steps.empty()) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       "checkpoint.resume: there is no complete checkpoint in '" + resume +
                           "'. Give a folder such as <output>/checkpoints/step-00000120, or a "
                           "run's output folder.");
  }
  return other.folder_of(steps.back());
}

}  // namespace llm::train
