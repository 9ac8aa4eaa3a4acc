// Runs that are tracked, as their users see them: figures everywhere, secrets nowhere, and the same
// numbers whatever becomes of a tracker.

#include <algorithm>
#include <cstdint>

#include "launch/loopback_socket.h"
#include "tests/e2e/secrets.h"
#include "tests/e2e/tracking.h"
#include "tests/support/small_disk.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// All that a run has printed and written below `folder`, in one text.
std::string all_text(const Ended& ended, const fs::path& folder) {
  std::string text = ended.out + ended.err;
  for (const std::string& name : listing(folder)) {
    text += name + "\n";
    if (fs::is_regular_file(folder / name)) {
      text += read_file(folder / name);
    }
  }
  return text;
}

// What was asked of a tracking server, whenever that was and in whatever batches; of the settings,
// which grow with every version, one.
nlohmann::json gist_of(const nlohmann::json& requests) {
  nlohmann::json gist = {
      {"bodies", nlohmann::json::array()}, {"lr", nullptr}, {"metrics", nlohmann::json::object()}};
  for (const auto& request : requests) {
    nlohmann::json sent = request.at("sent");
    sent = sent.is_null() ? nlohmann::json::object() : sent;
    for (const auto& param : sent.value("params", nlohmann::json::array())) {
      gist["lr"] = param.at("key") == "optim.lr" ? param.at("value") : gist["lr"];
    }
    for (const auto& metric : sent.value("metrics", nlohmann::json::array())) {
      gist["metrics"][metric.at("key").get<std::string>()].push_back(metric.at("step"));
    }
    const std::string target = request.at("target");
    if (!target.ends_with("log-batch")) {
      sent.erase("start_time");
      sent.erase("end_time");
      gist["bodies"].push_back({request.at("method"), target, sent});
    }
  }
  return gist;
}

// The steps of the rows of an offline run of W&B.
std::vector<std::string> wandb_steps(const std::string& bytes) {
  const std::string key = "_step\x82\x01";  // and the length of its value, a byte
  std::vector<std::string> steps;
  for (std::size_t at = bytes.find(key); at != std::string::npos; at = bytes.find(key, at + 1)) {
    const std::size_t size = static_cast<std::uint8_t>(bytes.at(at + key.size()));
    const std::string value = bytes.substr(at + key.size() + 1, size);
    if (value.find('.') == std::string::npos) {  // that of the summary is a float
      steps.push_back(value);
    }
  }
  return steps;
}

class Trackers : public testing::Test {
 protected:
  [[nodiscard]] fs::path output(const std::string& name) const { return folder_.path() / name; }
  // A run without trackers.
  [[nodiscard]] fs::path plain() const {
    expect_code(0, train(output("plain"), "3"));
    return output("plain");
  }
  TempFolder folder_;
};

TEST_F(Trackers, HaveTheFiguresAndChangeNoNumbers) {
  const HttpServer server(as_mlflow);
  const Arguments verb = train(output("run"), "3") + kAll +
                         Arguments{"--log.name",  "n",        "--log.tags",           "a,b",
                                   "--data.eval", kQuestions, "--data.eval[0].limit", "4"};
  const Ended ended = expect_code(0, on_ranks(2, verb), {tracking_uri(server.url())});
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("tracker tensorboard: tensorboard --logdir " +
                              output("run/tensorboard").string()),
                    HasSubstr("tracker wandb: to upload the run: wandb sync " +
                              output("run/wandb/offline-run-").string()),
                    HasSubstr("tracker mlflow: " + server.url() + "/#/experiments/1/runs/r1")));
  EXPECT_EQ(ended.err, "");
  std::string sent;
  for (const Asked& asked : server.asked()) {
    sent += asked.body;
  }
  for (const std::string& text :
       {sent, all_text({}, output("run/tensorboard")), all_text({}, output("run/wandb"))}) {
    for (const char* const name : {"train/loss", "train/grad_norm", "train/learning_rate",
                                   "train/epoch", "perf/tokens_per_second", "eval/loss"}) {
      EXPECT_THAT(text, HasSubstr(name));
    }
  }
  EXPECT_EQ(count_of(sent, "train/loss"), 3U);
  EXPECT_EQ(server.asked().size(), count_of(sent, "run_id") + 3U);  // one rank alone has sent
  expect_code(0, on_ranks(2, train(output("plain"), "3")));
  expect_same(output("run"), output("plain"));
}

// The same run as in scripts/read_trackers.py, which has written down what a real server answered.
TEST_F(Trackers, SpeakToMlflowAsRecorded) {
  const auto recorded =
      nlohmann::json::parse(read_file(SHERD_TEST_SOURCE_DIR "/tests/data/trackers/mlflow.json"));
  const HttpServer server([&](const Asked& asked) {
    for (const auto& request : recorded) {
      if (request.at("method") == asked.method && request.at("target") == asked.target) {
        return Answer{request.at("status").get<int>(), request.at("answer").dump()};
      }
    }
    return Answer{500, "not recorded"};
  });
  const Ended ended =
      expect_code(0,
                  train(output("run"), "6") + kAll +
                      Arguments{"--data.eval", kQuestions, "--data.eval[0].limit", "4",
                                "--checkpoint.every", "3 steps", "--log.tags", "small"},
                  {tracking_uri(server.url())});
  auto heard = nlohmann::json::array();
  for (const Asked& asked : server.asked()) {
    heard.push_back({{"method", asked.method},
                     {"target", asked.target},
                     {"sent", asked.body.empty() ? nlohmann::json(nullptr)
                                                 : nlohmann::json::parse(asked.body)}});
  }
  EXPECT_EQ(gist_of(heard), gist_of(recorded));
  EXPECT_THAT(ended.out, Not(HasSubstr("dropped")));
}

TEST_F(Trackers, OfAResumedRunGoOn) {
  expect_code(0, train(output("run"), "3") + kFiles + Arguments{"--checkpoint.every", "1 steps"});
  fs::remove_all(output("run/checkpoints/step-00000003"));
  expect_code(0, train(output("run"), "3") + kFiles);
  const std::string id = read_file(output("run/wandb-run-id"));
  const std::vector<std::string> names = listing(output("run"));
  const auto sessions = [&](const std::string& part) {
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    });
  };
  EXPECT_EQ(sessions("events.out.tfevents."), 2);
  const std::string wandb_file = "run-" + id.substr(0, 8) + ".wandb";
  EXPECT_EQ(sessions(wandb_file), 2);
  // The last folder of W&B has all steps, the first those of its session; event files have theirs.
  std::vector<std::vector<std::string>> steps_of_sessions;
  for (const auto& entry : fs::directory_iterator(output("run/wandb"))) {
    steps_of_sessions.push_back(wandb_steps(read_file(entry.path() / wandb_file)));
  }
  EXPECT_THAT(steps_of_sessions, testing::Each(testing::ElementsAre("1", "2", "3")));
  EXPECT_EQ(column(output("run"), "loss").size(), 3U);
  const std::string newest = *std::max_element(
      names.begin(), names.end(), [](const std::string& one, const std::string& other) {
        return (one.find("tfevents") != std::string::npos ? one : "") <
               (other.find("tfevents") != std::string::npos ? other : "");
      });
  EXPECT_EQ(count_of(read_file(output("run") / newest), "train/loss"), 1U);
}

// A server that takes connections and never answers holds no run, and no process at its end.
TEST_F(Trackers, ThatNeverAnswerAreLeftAtTheEnd) {
  const auto silent = launch::listen_on_loopback({});
  const std::string url = "http://127.0.0.1:" + std::to_string(silent.port);
  Program run(train(output("run"), "400") + Arguments{"--log.sink[1].kind", "mlflow"},
              {tracking_uri(url)});
  run.wait_for("step 3/");
  run.signal(SIGTERM);
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("tracker mlflow: no longer waited for, after 5 s\n"),
                               HasSubstr(" points were dropped\n")));
  EXPECT_LT(ended.seconds, 15);
}

// A failed run says what its trackers have not got.
TEST_F(Trackers, OfAFailedRunAreToldOf) {
  const auto silent = launch::listen_on_loopback({});
  const std::string url = "http://127.0.0.1:" + std::to_string(silent.port);
  Program run(train(output("run"), "400") + kFiles +
                  Arguments{"--log.sink[3].kind", "mlflow", "--checkpoint.every", "6 steps"},
              {tracking_uri(url)});
  run.wait_for("checkpoint ");
  fs::rename(output("run/checkpoints"), output("away"));
  folder_.write("run/checkpoints", "a file in the place of a folder");
  const Ended ended = run.finish();
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.code, 128 + SIGSEGV);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("tracker wandb: to upload the run: wandb sync "),
                               HasSubstr("tracker mlflow: no longer waited for, after 2 s")));
}

TEST_F(Trackers, ThatFailAreSaidOnceAndChangeNothing) {
  const fs::path file = folder_.write("file", "");  // in the place of a folder
  const std::string nobody = [] {
    const auto socket = launch::listen_on_loopback({});
    return "http://127.0.0.1:" + std::to_string(socket.port);
  }();
  const Arguments verb = train(output("run"), "3") + kAll +
                         Arguments{"--log.sink[1].path", (file / "tensorboard").string(),
                                   "--log.sink[2].path", (file / "wandb").string()};
  const Ended ended = expect_code(0, verb, {tracking_uri(nobody)});
  for (const std::string name : {"tensorboard", "wandb", "mlflow"}) {
    EXPECT_EQ(count_of(ended.out, "tracker " + name + ": 3 of 3 points were dropped\n"), 1U)
        << ended.out;
    EXPECT_EQ(count_of(ended.out, "; the run continues"), 3U) << ended.out;
  }
  EXPECT_THAT(ended.out, HasSubstr("Not a directory"));
  EXPECT_LT(ended.seconds, 20);
  expect_same(output("run"), plain());
}

TEST_F(Trackers, OnAFullDiskChangeNothing) {
  const SmallDisk disk(folder_.path() / "disk");
  if (!disk.is_there()) {
    GTEST_SKIP() << SmallDisk::kWhyNot;
  }
  const Arguments verb = train(output("run"), "3") + kFiles +
                         Arguments{"--log.sink[1].path", (disk.path() / "tensorboard").string(),
                                   "--log.sink[2].path", (disk.path() / "wandb").string(),
                                   "--log.tags",         std::string(20'000, 'x')};
  const Ended ended = run_program(verb);
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("tracker tensorboard: "), HasSubstr("No space left"),
                               HasSubstr("the run continues without it")));
  expect_same(output("run"), plain());
}

TEST_F(Trackers, KeepNoSecrets) {
  const HttpServer server(as_mlflow);
  const std::string words[] = {"canary-hub",      "canary-key",   "canary-user",
                               "canary-password", "canary-token", "canary-url"};
  const std::string url = "http://canary-url:canary-url@" + server.url().substr(7);
  const Arguments secrets = {"HF_TOKEN=" + words[0],
                             "WANDB_API_KEY=" + words[1],
                             "MLFLOW_TRACKING_USERNAME=" + words[2],
                             "MLFLOW_TRACKING_PASSWORD=" + words[3],
                             "MLFLOW_TRACKING_TOKEN=" + words[4],
                             "WANDB_DIR=" + output("wandb").string(),
                             tracking_uri(url)};
  const Ended ended = expect_code(0, on_ranks(2, train(output("run"), "3") + kAll), secrets);
  const std::string text = all_text(ended, folder_.path());
  EXPECT_THAT(text, HasSubstr("offline-run-"));
  // The server got them, and nobody else.
  ASSERT_FALSE(server.asked().empty());
  for (const Asked& asked : server.asked()) {
    EXPECT_EQ(asked.header("Authorization"),
              "Basic Y2FuYXJ5LXVzZXI6Y2FuYXJ5LXBhc3N3b3Jk");  // canary-user:canary-password
  }
  for (const std::string& word : words) {
    EXPECT_FALSE(holds_secret(text, word)) << word;
  }
  EXPECT_THAT(text, Not(HasSubstr("canary")));
  // Of an address that is none, what stands before the host is not said either.
  for (const std::string odd :
       {"http://me:can/ary@host", "http://me:canary@host:500000", "http://me:ca nary@host"}) {
    const fs::path place = output("odd");
    const Ended said = run_program(train(place, "3") + Arguments{"--log.sink[1].kind", "mlflow"},
                                   {tracking_uri(odd)});
    const std::string all = all_text(said, fs::exists(place) ? place : folder_.path() / "run");
    for (const std::string part : {"canary", "can/ary", "ca nary", "me:can", "me:ca"}) {
      EXPECT_THAT(all, Not(HasSubstr(part))) << odd;
    }
    fs::remove_all(place);
  }
  const HttpServer refuses([](const Asked&) { return Answer{403, "{}"}; });
  const Arguments others = {"MLFLOW_TRACKING_TOKEN=" + words[4], tracking_uri(refuses.url())};
  const Ended refused = expect_code(
      0, train(output("refused"), "3") + Arguments{"--log.sink[1].kind", "mlflow"}, others);
  for (const Asked& asked : refuses.asked()) {
    EXPECT_EQ(asked.header("Authorization"), "Bearer " + words[4]);
  }
  EXPECT_THAT(refused.out, AllOf(HasSubstr("answers 403; look at MLFLOW_TRACKING_USERNAME"),
                                 HasSubstr("the run continues without it")));
  EXPECT_THAT(all_text(refused, output("refused")), Not(HasSubstr("canary")));
}

TEST_F(Trackers, NeedTheirSettings) {
  const auto verb = train(output("run"), "3");
  EXPECT_THAT(expect_code(64, verb + Arguments{"--log.sink[1].kind", "mlflow"}).err,
              HasSubstr("needs MLFLOW_TRACKING_URI"));
  EXPECT_THAT(
      expect_code(64, verb + Arguments{"--log.sink[1].kind", "wandb"}, {"WANDB_RUN_ID=a/b"}).err,
      HasSubstr("WANDB_RUN_ID = 'a/b' cannot name a run"));
  EXPECT_FALSE(fs::exists(output("run/log.jsonl")));
  EXPECT_THAT(expect_code(64, verb + Arguments{"--log.sink[1].kind", "jsonl"}).err,
              HasSubstr("log.sink[1] is of the kind that log.sink[0] has"));
}

}  // namespace
}  // namespace sherd::test
