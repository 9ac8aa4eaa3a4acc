#pragma once
// All trackers of a run.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/rank_environment.h"
#include "llm/config/run_config.h"
#include "llm/track/step_record.h"
#include "llm/track/tracker.h"
#include "llm/track/tracker_thread.h"

namespace llm::track {

/// An evaluation as trackers know it.
struct EvaluationRecord {
  std::int64_t step = 0;
  std::string data = {};  ///< see evaluation_names()
  double loss = 0;
  bool generated = false;  ///< whether there are `em` and `f1`
  double em = 0;
  double f1 = 0;
  double seconds = 0;
  double unix_seconds = 0;                     ///< when it ended
  std::map<std::string, double> figures = {};  ///< of the objective
};

/// "train/loss", "perf/tokens_per_second" and so on; without loss where nothing was learned.
[[nodiscard]] Point point_of(const StepRecord& record);
/// "eval/loss", or "eval/dev/loss" of what is called "dev".
[[nodiscard]] Point point_of(const EvaluationRecord& record);

/// What evaluated files are called in trackers: nothing where there is one; else their names
/// without folder and extension, in characters that all trackers take, with a number where two
/// would be alike: "dev", "dev-1".
[[nodiscard]] std::vector<std::string> evaluation_names(const std::vector<std::string>& paths);

/// The trackers that the sinks of a configuration ask for. For rank 0. Nothing in them stops, slows
/// or changes a run.
class Trackers {
 public:
  /// Touches nothing yet. Throws sherd::Error(Usage) for an environment with which a tracker cannot
  /// begin: MLFLOW_TRACKING_URI is missing, say.
  explicit Trackers(const config::RunConfig& config, const sherd::launch::EnvLookup& environment =
                                                         sherd::launch::process_environment);
  /// Without end() before: the run failed.
  ~Trackers();
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// A run that begins or, where `steps_done` are done, goes on: `earlier` gives what was logged of
  /// them, on threads of the trackers, whenever they ask. Trackers begin with the first point.
  void begin(std::int64_t steps_done, const EarlierPoints& earlier = {});
  void log(const Point& point);
  /// Waits for the trackers, for each as long as it asks for, and for all at the same time.
  void end(End how);
  /// Lines for people: where the run is tracked, at the start; what failed; what there is to do.
  [[nodiscard]] std::vector<std::string> take_news();

 private:
  std::vector<std::unique_ptr<TrackerThread>> threads_;
  std::vector<std::string> news_;
};

}  // namespace llm::track
