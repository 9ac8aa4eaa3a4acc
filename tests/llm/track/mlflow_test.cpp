// What is sent to a tracking server, and what comes of its answers, which are those of MLflow 3.
// (scripts/trackers asks a real server.)

#include "llm/track/mlflow.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/llm/track/tracked_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace llm::track {
namespace {

using Json = nlohmann::json;
using sherd::test::Answer;
using sherd::test::Asked;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kNoExperiment =
    R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "Could not find experiment with name 'sherd'"})";
constexpr const char* kRun =
    R"({"run": {"info": {"run_id": "r1", "experiment_id": "7", "status": "RUNNING"}}})";
constexpr const char* kUpdated =
    R"({"run_info": {"run_id": "r1", "experiment_id": "7", "status": "RUNNING"}})";

std::string call_of(const Asked& asked) {
  constexpr std::string_view kBase = "/api/2.0/mlflow/";
  EXPECT_TRUE(asked.path.starts_with(kBase)) << asked.path;
  return asked.path.substr(kBase.size());
}

// As a server that has no experiment yet.
Answer usual(const Asked& asked) {
  const std::string call = call_of(asked);
  if (call == "experiments/get-by-name") {
    return {404, kNoExperiment};
  }
  if (call == "experiments/create") {
    return {200, R"({"experiment_id": "7"})"};
  }
  return {200, call == "runs/create" ? kRun : call == "runs/update" ? kUpdated : "{}"};
}

class MlflowServer : public testing::Test {
 protected:
  Mlflow tracker(const sherd::test::HttpServer& server, Variables variables = {},
                 const config::LogSection& log = {}) {
    variables["MLFLOW_TRACKING_URI"] = server.url() + "/";
    return Mlflow(run_in(folder_, variables, log));
  }
  static std::vector<std::string> calls(const sherd::test::HttpServer& server) {
    std::vector<std::string> all;
    for (const Asked& asked : server.asked()) {
      all.push_back(call_of(asked));
    }
    return all;
  }
  static Json body(const sherd::test::HttpServer& server, std::size_t i) {
    return Json::parse(server.asked().at(i).body);
  }
  sherd::test::TempFolder folder_;
};

TEST_F(MlflowServer, GetsRunSettingsMetricsAndEnd) {
  const sherd::test::HttpServer server(usual);
  Mlflow mlflow = tracker(server, {}, {.tags = {"small"}});
  mlflow.begin(0, {});
  const std::vector<Point> points = {{1, 1e9, {{"train/loss", 2.5}, {"train/epoch", NAN}}},
                                     {2, 1e9 + 0.5, {{"train/loss", 1.5}}}};
  mlflow.log(points);
  mlflow.end(End::Finished);
  EXPECT_THAT(calls(server),
              ElementsAre("experiments/get-by-name", "experiments/create", "runs/create",
                          "runs/log-batch", "runs/log-batch", "runs/log-batch", "runs/update"));
  EXPECT_EQ(server.asked()[0].target,
            "/api/2.0/mlflow/experiments/get-by-name?experiment_name=sherd");
  EXPECT_EQ(server.asked()[1].body, R"({"name":"sherd"})");
  EXPECT_EQ(body(server, 2).at("run_name"), "first");
  EXPECT_EQ(body(server, 2).at("experiment_id"), "7");
  EXPECT_EQ(body(server, 2).at("tags"), Json::parse(R"([{"key": "small", "value": "true"}])"));
  // The server takes a hundred settings at a time.
  EXPECT_EQ(body(server, 3).at("params").size(), 100U);
  EXPECT_THAT(server.asked()[3].body + server.asked()[4].body,
              AllOf(HasSubstr(R"({"key":"optim.lr","value":"2e-05"})"),
                    HasSubstr(R"({"key":"data.train.0.path","value":"squad.json"})")));
  EXPECT_EQ(body(server, 5), Json::parse(R"({"run_id": "r1", "metrics": [
      {"key": "train/loss", "value": 2.5, "timestamp": 1000000000000, "step": 1},
      {"key": "train/loss", "value": 1.5, "timestamp": 1000000000500, "step": 2}]})"));
  EXPECT_EQ(body(server, 6).at("status"), "FINISHED");
  EXPECT_EQ(mlflow.closing_words(), "tracker mlflow: " + server.url() + "/#/experiments/7/runs/r1");
}

TEST_F(MlflowServer, OfAResumedRunGoesOnInIt) {
  const sherd::test::HttpServer server(usual);
  tracker(server).begin(0, {});
  const std::size_t before = server.asked().size();
  Mlflow second = tracker(server);
  second.begin(4, {});
  second.end(End::Stopped);
  ASSERT_EQ(server.asked().size(), before + 2);
  EXPECT_EQ(body(server, before), Json::parse(R"({"run_id": "r1", "status": "RUNNING"})"));
  EXPECT_EQ(body(server, before + 1).at("status"), "KILLED");
  Mlflow anew = tracker(server);
  anew.begin(0, {});
  EXPECT_EQ(calls(server).at(before + 4), "runs/create");
}

TEST_F(MlflowServer, ThatHasForgottenTheRunGetsANewOne) {
  const sherd::test::HttpServer server([](const Asked& asked) {
    return call_of(asked) == "runs/update" ? Answer{404, kNoExperiment} : usual(asked);
  });
  tracker(server).begin(0, {});
  tracker(server).begin(4, {});
  EXPECT_THAT(calls(server), testing::Contains("runs/create").Times(2));
}

TEST_F(MlflowServer, TakesItsEnvironment) {
  const sherd::test::HttpServer server(usual);
  Mlflow named = tracker(server, {{"MLFLOW_EXPERIMENT_NAME", "my runs"},
                                  {"MLFLOW_RUN_NAME", "n"},
                                  {"MLFLOW_TRACKING_USERNAME", "user"},
                                  {"MLFLOW_TRACKING_PASSWORD", "pass"}});
  named.begin(0, {});
  EXPECT_THAT(server.asked()[0].target, HasSubstr("experiment_name=my%20runs"));
  EXPECT_EQ(body(server, 2).at("run_name"), "n");
  EXPECT_EQ(server.asked()[0].header("Authorization"), "Basic dXNlcjpwYXNz");
  const std::size_t before = server.asked().size();
  Mlflow given = tracker(server, {{"MLFLOW_RUN_ID", "r1"}, {"MLFLOW_TRACKING_TOKEN", "t"}});
  given.begin(0, {});
  EXPECT_EQ(calls(server).at(before), "runs/update");
  EXPECT_EQ(server.asked()[before].header("Authorization"), "Bearer t");
  EXPECT_EQ(calls(server).at(before + 1), "runs/log-batch");  // a new run's settings
}

TEST_F(MlflowServer, MayAnswerLater) {
  int busy = 1;
  const sherd::test::HttpServer server([&](const Asked& asked) {
    return call_of(asked) == "runs/log-batch" && busy-- > 0 ? Answer{503, "busy"} : usual(asked);
  });
  Mlflow mlflow = tracker(server);
  EXPECT_THROW(mlflow.begin(0, {}), TryLater);
  mlflow.begin(0, {});  // goes on where it was
  EXPECT_THAT(calls(server), testing::Contains("runs/create").Times(1));
}

TEST_F(MlflowServer, IsSaidWhereItRefuses) {
  const auto refused = [&](int status, const char* answer, const std::vector<std::string>& parts) {
    const sherd::test::HttpServer server([&](const Asked&) { return Answer{status, answer}; });
    Mlflow mlflow = tracker(server, {{"MLFLOW_TRACKING_TOKEN", "canary"}});
    try {
      mlflow.begin(0, {});
      ADD_FAILURE() << status;
    } catch (const sherd::Error& error) {
      for (const std::string& part : parts) {
        EXPECT_THAT(error.what(), HasSubstr(part));
      }
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("canary")));
    }
  };
  refused(401, "", {"answers 401", "MLFLOW_TRACKING_TOKEN"});
  refused(403, "{}", {"answers 403", "MLFLOW_TRACKING_USERNAME"});
  refused(400, R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "no such name"})",
          {"answers 400: no such name"});
  refused(302, "", {"answers 302"});
  refused(200, "<html>",
          {"experiments/get-by-name with something that is not JSON: is it an MLflow server?"});
  refused(200, "{}", {"the server's answer has no 'experiment'"});
}

TEST_F(MlflowServer, ThatIsNotThereMayComeLater) {
  std::string url;
  {
    const sherd::test::HttpServer server(usual);
    url = server.url();
  }
  Mlflow mlflow(run_in(folder_, {{"MLFLOW_TRACKING_URI", url}}));
  EXPECT_THROW(mlflow.begin(0, {}), TryLater);
}

TEST_F(MlflowServer, HasToBeGiven) {
  using sherd::test::expect_error;
  expect_error([&] { Mlflow(run_in(folder_)); }, sherd::ExitCode::Usage,
               {"needs MLFLOW_TRACKING_URI", "it is not set"});
  expect_error(
      [&] {
        Mlflow(run_in(folder_, {{"MLFLOW_TRACKING_URI", "sqlite:///canary"}}));
      },
      sherd::ExitCode::Usage, {"its value does not begin with http"});
  EXPECT_EQ(Mlflow(run_in(folder_, {{"MLFLOW_TRACKING_URI", "http://u:canary@host:5"}})).place(),
            "http://host:5");
}

}  // namespace
}  // namespace llm::track
