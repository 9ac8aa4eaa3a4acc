#pragma once
// Runs in MLflow, over the REST interface of a tracking server.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/track/tracked_run.h"
#include "llm/track/tracker.h"
#include "net/http.h"

namespace llm::track {

/// Sends figures to the server that MLFLOW_TRACKING_URI names, in batches.
class Mlflow final : public Tracker {
 public:
  /// Throws sherd::Error(Usage) where MLFLOW_TRACKING_URI is not the address of a server.
  explicit Mlflow(const TrackedRun& run);

  [[nodiscard]] std::string name() const override { return "mlflow"; }
  [[nodiscard]] std::string place() const override;
  void begin(std::int64_t steps_done, const EarlierPoints& earlier) override;
  void log(std::span<const Point> points) override;
  void end(End how) override;
  [[nodiscard]] std::string closing_words() const override;

 private:
  // What the server answers. Throws TryLater, or sherd::Error for what it refuses.
  nlohmann::json ask(const std::string& call, const nlohmann::json& body);
  // The same; null where there is no such thing.
  nlohmann::json ask_for(const std::string& method, const std::string& call,
                         const nlohmann::json& body);
  [[nodiscard]] std::string experiment();
  [[nodiscard]] bool goes_on(const std::string& run_id);
  void create_run();
  void log_settings();

  TrackedRun run_;
  std::string server_;
  sherd::net::Client client_;
  std::string experiment_id_;
  std::string run_id_;
  bool has_settings_ = false;  // the run, of an earlier session
};

}  // namespace llm::track
