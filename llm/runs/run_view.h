#pragma once
// A run as `sherd watch` shows it.

#include <filesystem>
#include <optional>
#include <string>

#include "llm/runs/run_records.h"

namespace llm::runs {

enum class RunState {
  Running,   ///< a process holds its folder
  Finished,  ///< it has left its summary
  Stopped,   ///< on request, or it was killed: the same command goes on
  Failed,    ///< its log says why
};

/// Whether a process of this host, or of one whose file system tells locks, trains into the folder.
[[nodiscard]] RunState state_of(const std::filesystem::path& folder);

/// A run that has not written down what it is yet.
[[nodiscard]] std::string view_of_beginning(const std::filesystem::path& folder);

/// The terminal that shows it.
struct Screen {
  int columns = 80;
  std::optional<int> rows = std::nullopt;  ///< none: as many as there is to show
};

/// Several lines, without a line end after the last: what the run is and how far, the last step,
/// curves of the losses, of speed and of memory, the evaluations. Where there are few rows curves
/// are lower, and what comes last is left out, so that with the line below they suffice.
[[nodiscard]] std::string view_of(const RunRecords& run, RunState state, const Screen& screen);

}  // namespace llm::runs
