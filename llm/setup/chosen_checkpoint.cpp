#include "llm/setup/chosen_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "files/system_text.h"
#include "llm/runs/run_records.h"
#include "llm/runs/run_summary.h"
#include "sherd/error.h"

namespace llm::setup {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

std::int64_t step_in(const std::string& which) {
  std::int64_t step = 0;
  const char* end = which.data() + which.size();
  const auto [stop, fault] = std::from_chars(which.data(), end, step);
  if (fault != std::errc{} || stop != end || step < 1) {
    throw Error(ExitCode::Usage,
                fmt::format("--checkpoint {}: give best, last or the number of a step, or the "
                            "folder of a checkpoint",
                            which));
  }
  return step;
}

std::int64_t best_step(const fs::path& run) {
  const auto best = runs::summary_of(run).best;
  if (!best) {
    throw Error(ExitCode::InputMissing,
                fmt::format("--checkpoint best: the log of the run '{}' has no evaluation after a "
                            "step. Give last or the number of a step.",
                            run.string()));
  }
  return best->step;
}

}  // namespace

IntactCheckpoint chosen_checkpoint(const fs::path& run, const std::string& which) {
  if (is_checkpoint(which)) {
    return {which};
  }
  if (which == "last") {
    return newest_intact(run.string(), "--checkpoint last");
  }
  const Checkpoints checkpoints(run);
  const std::int64_t step = which == "best" ? best_step(run) : step_in(which);
  const std::vector<std::int64_t> steps = checkpoints.complete_steps();
  if (!std::binary_search(steps.begin(), steps.end(), step)) {
    const std::string advice =
        which == "best" ? " checkpoint.best = true keeps that of the best evaluation." : "";
    throw Error(
        ExitCode::InputMissing,
        fmt::format("--checkpoint {}: the run '{}' has no checkpoint of step {}; there {} "
                    "{}.{}",
                    which, run.string(), step, steps.size() == 1 ? "is" : "are",
                    steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")), advice));
  }
  return {checkpoints.folder_of(step)};
}

IntactCheckpoint checkpoint_at(const std::string& path, const std::string& which,
                               const std::string& key) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw Error(ExitCode::InputMissing, fmt::format("{}: '{}' does not exist{}", key, path,
                                                    sherd::files::where_it_begins(path)));
  }
  if (which.empty()) {
    return newest_intact(path, key);
  }
  if (is_checkpoint(path)) {
    throw Error(ExitCode::Usage, fmt::format("--checkpoint {} selects a checkpoint of a run: '{}' "
                                             "is a checkpoint itself. Give a run's output folder.",
                                             which, path));
  }
  return chosen_checkpoint(path, which);
}

}  // namespace llm::setup
