#pragma once
// What has become of a sweep's runs, in sweep.json of its output folder.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "llm/config/sweep_file.h"

namespace llm::runs {

/// What became of a run of a sweep.
struct SweptRun {
  config::SweepRun run;
  config::RunConfig config;      ///< as it was read for the run
  std::optional<int> exit_code;  ///< none: it was begun or submitted
  double seconds = 0;            ///< that it took; 0 where it was submitted
  std::string job = {};          ///< its number in Slurm, if it was submitted
};

class SweepRecords {
 public:
  /// Makes the folder, and reads what an earlier start has left there. Throws sherd::Error:
  /// CannotWrite, BadData.
  explicit SweepRecords(std::filesystem::path output);

  /// Whether the run has ended well, so that a restart passes it over. Throws sherd::Error(Usage)
  /// where a run of this name was made with other settings, of the recipe or its own, and has come
  /// to its end or left a checkpoint that it would resume from.
  [[nodiscard]] bool is_done(const config::SweepRun& run, const config::RunConfig& config) const;
  /// The job as which the run was submitted last; empty if it was not.
  [[nodiscard]] std::string job_of(const config::SweepRun& run) const;
  /// Where the run's job leaves its exit code.
  [[nodiscard]] std::filesystem::path code_file_of(const config::SweepRun& run) const;
  /// The exit code that the run's last job has left there, unless that is 0 or the run now has
  /// other settings than it was submitted with.
  [[nodiscard]] std::optional<int> failure_of_job(const config::SweepRun& run,
                                                  const config::RunConfig& config) const;
  /// Throws sherd::Error: CannotWrite, StorageIo.
  void add(SweptRun ended);

 private:
  std::filesystem::path output_;
  std::map<std::string, SweptRun> runs_;  // by name
};

}  // namespace llm::runs
