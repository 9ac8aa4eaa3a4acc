#pragma once
// The record of a training step, as a line for people and as JSON for programs.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace llm::track {

/// One step of training, all ranks together.
struct StepRecord {
  std::int64_t step = 0;  ///< from 1
  std::int64_t total_steps = 0;
  double loss = 0;       ///< mean over supervised tokens, of an objective over samples; NaN: none
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;             ///< real ones, without padding
  std::int64_t supervised_tokens = 0;  ///< 0: the step changed nothing
  std::int64_t samples = 0;
  bool skipped = false;  ///< loss or norm was not finite, and the update was left out
  double step_seconds = 0;
  double unix_seconds = 0;           ///< when it ended
  std::int64_t peak_rank_bytes = 0;  ///< the largest resident peak (VmHWM) over the ranks
  double data_wait_seconds = 0;      ///< the longest that a rank waited for its batches
  double epochs = 0;                 ///< passes over the data so far, with this step
  /// Model FLOPs utilization: 1 is all that the ranks could compute; none where that is not known.
  std::optional<double> mfu = std::nullopt;
  /// Of the first rank's thread, what nested work takes left out: gather, forward, backward,
  /// reduce, clip, optimizer, wait (for other ranks), other.
  std::map<std::string, double> phase_seconds = {};
  std::map<std::string, double> figures = {};  ///< of the objective: "rewards/margins"

  [[nodiscard]] double tokens_per_second() const;
  [[nodiscard]] double samples_per_second() const;
};

/// `step 120/1000 | loss 1.234 | gnorm 0.87 | lr 1.9e-05 | 8.4k tok/s | mfu 49.6% | mem 96.1 GiB |
/// eta 00:41:12 | epoch 1.20`; without the epoch where it is 0, and the utilization where it is not
/// known. Where that is wider than `columns`, parts are left out, the least important first: the
/// epoch, the utilization, the memory, the norm of the gradient, the rate. 0: as wide as it is.
[[nodiscard]] std::string step_line(const StepRecord& record, double eta_seconds, int columns = 0);
/// What a run does after the step of `record`: "computing step 121/1000"; where the step's line has
/// not been printed, with its loss and the time left.
[[nodiscard]] std::string next_step_text(const StepRecord& record, double eta_seconds,
                                         bool is_told);
/// One JSON object without a line end; a number that is not finite becomes null.
[[nodiscard]] std::string step_json(const StepRecord& record);

/// Now, as records have it: seconds since 1970, to the millisecond.
[[nodiscard]] double unix_seconds_now();

/// "49.6%", of 0.496.
[[nodiscard]] std::string percent(double share);
/// "8.4k", "950", "1.2M", "8.03B".
[[nodiscard]] std::string short_count(double value);
/// Three digits, or all before the point: "0.0123", "12.3", "1123".
[[nodiscard]] std::string short_number(double value);
/// "96.1 GiB", "812 MiB".
[[nodiscard]] std::string short_bytes(std::int64_t bytes);
/// "00:41:12".
[[nodiscard]] std::string clock_text(double seconds);

}  // namespace llm::track
