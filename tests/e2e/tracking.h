#pragma once
// Runs with trackers, and a server that they can track to.

#include <string>

#include "tests/e2e/training.h"
#include "tests/support/http_server.h"

namespace sherd::test {

inline const Arguments kFiles = {"--log.sink[1].kind", "tensorboard", "--log.sink[2].kind",
                                 "wandb"};
inline const Arguments kAll = kFiles + Arguments{"--log.sink[3].kind", "mlflow"};

inline std::string tracking_uri(const std::string& url) {
  return "MLFLOW_TRACKING_URI=" + url;
}

/// Answers as a tracking server does that has no experiment.
inline Answer as_mlflow(const Asked& asked) {
  if (asked.path.ends_with("get-by-name")) {
    return {404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})"};
  }
  return {200, R"({"experiment_id": "1", "run": {"info": {"run_id": "r1"}},
                   "run_info": {"run_id": "r1", "experiment_id": "1"}})"};
}

}  // namespace sherd::test
