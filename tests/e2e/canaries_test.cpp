// Secrets that stand in the environment reach nobody but the server that they log in to: no file,
// no output, no list of processes, whatever verb is given.

#include <set>
#include <sstream>

#include "tests/e2e/secrets.h"
#include "tests/e2e/tracking.h"
#include "tests/support/hub_server.h"

namespace sherd::test {
namespace {

const std::string kStem = "Canary7f3a";  // of all secrets here
const std::string kHubToken = kStem + "-hub-token";
const std::string kTrackingToken = kStem + "-tracking-token";

// What the program says itself.
std::set<std::string> all_verbs() {
  const std::string text = expect_code(64, {"no-verb"}).err;
  const std::string before = "the commands are ";
  const std::size_t begin = text.find(before) + before.size();
  std::istringstream names(text.substr(begin, text.find(". See ", begin) - begin));
  std::set<std::string> verbs;
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    verbs.insert(name);
  }
  return verbs;
}

/// Calls verbs with secrets in their environment and all that they write in one folder.
class Canaries : public testing::Test {
 protected:
  Canaries() {
    for (const char* const name : {"home", "cache", "tmp"}) {
      fs::create_directory(at(name));
    }
    hub_.at_storage = [this](const Asked&, Answer answer) {
      look_at_processes();
      return answer;
    };
  }

  [[nodiscard]] std::string at(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  // `train` by a model's name on the hub, with the words of another verb that takes a recipe.
  [[nodiscard]] Arguments recipe(const std::string& verb, const std::string& output) const {
    Arguments words = train(at(output), "2");
    std::replace(words.begin(), words.end(), kModel, kHubModel);
    words.front() = verb;
    return words + kAll;
  }
  [[nodiscard]] Arguments secrets() const {
    return {"HF_TOKEN=" + kHubToken,
            "HUGGING_FACE_HUB_TOKEN=" + kStem + "-old-hub-token",
            "WANDB_API_KEY=" + kStem + "-wandb-key",
            "MLFLOW_TRACKING_TOKEN=" + kTrackingToken,
            "HF_ENDPOINT=" + hub_.url(),
            "HF_HOME=" + at("hf"),
            "HOME=" + at("home"),
            "XDG_CACHE_HOME=" + at("cache"),
            "TMPDIR=" + at("tmp"),
            tracking_uri(mlflow_.url())};
  }
  // A verb to its end, which is one of these.
  void call(const Arguments& words, const Arguments& more = {}, const std::set<int>& codes = {0}) {
    const Ended ended = run_program(words, secrets() + more);
    EXPECT_THAT(codes, testing::Contains(ended.code)) << words.front() << ended.out << ended.err;
    called_.insert(words.front());
    said_ += ended.out + ended.err;
  }
  // While a verb is at work: servers call it.
  void look_at_processes() {
    std::istringstream lines(command_lines());
    std::size_t of_the_run = 0;
    for (std::string line; std::getline(lines, line);) {
      of_the_run +=
          line.find(" train ") != std::string::npos && line.find(at("run")) != std::string::npos
              ? 1
              : 0;
      processes_ += line + "\n";
    }
    most_of_the_run_ = std::max(most_of_the_run_, of_the_run);
  }
  void call_all_verbs();
  void expect_nowhere() const;
  void expect_at_servers_alone() const;

  TempFolder folder_;
  HubServer hub_{kModel};
  HttpServer mlflow_{[this](const Asked& asked) {
    look_at_processes();
    return as_mlflow(asked);
  }};
  std::string processes_;            // while verbs were at work
  std::size_t most_of_the_run_ = 0;  // processes of `train -n 2` at once
  std::string said_;
  std::set<std::string> called_;
};

void Canaries::call_all_verbs() {
  const Arguments evaluated = {"--data.eval",       kQuestions, "--data.eval[0].limit", "4",
                               "--eval.generate",   "true",     "--checkpoint.export",  "end",
                               "--log.trace_steps", "2"};
  const Arguments as_user = {"MLFLOW_TRACKING_USERNAME=" + kStem + "-user",
                             "MLFLOW_TRACKING_PASSWORD=" + kStem + "-password"};
  call({"fetch", kHubModel});
  call({"fetch", "tiny-org/none"}, {}, {66});
  call(recipe("train", "run") + evaluated + Arguments{"-n", "2"}, as_user);
  call(on_ranks(2, {"eval", at("run"), "--limit", "2", "--predictions", at("predictions")}));
  call({"eval", kHubModel, "--data", kQuestions, "--loss-only", "--limit", "2", "--json"});
  call({"generate", at("run"), "--prompt", "Tom", "--max-new-tokens", "2"});
  call({"chat", at("run")}, {}, {65});  // its model has no chat template
  call({"export", "--checkpoint", at("run"), "--out", at("exported")});
  call({"export", at("run"), "--gguf", at("exported.gguf")});
  call({"import", at("exported.gguf"), at("imported")});
  call(recipe("plan", "run") + Arguments{"-n", "2", "--json"});
  call(recipe("check", "checked") + Arguments{"--json"}, {}, {0, 1});
  call(recipe("sweep", "sweep"));
  call(recipe("slurm", "run") + Arguments{"--nodes", "2", "--out", at("job.sbatch")});
  const Arguments compare = {"compare", at("run"), at("sweep/n1")};
  call(compare);
  call(compare + Arguments{"--csv", "--html", at("compared.html")});
  call(compare + Arguments{"--json"});
  call({"watch", at("run")});
  call({"watch", at("run"), "--step", "1", "--json"});
  call({"recipes", "ls"});
  call({"recipes", "cp", "small-bloom-squad-32", at("copied.toml")});
  call({"doctor"}, {}, {0, 1});
  call({"doctor", "--json"}, {}, {0, 1});
  Arguments preview = recipe("preview", "run") + Arguments{"--html", at("preview.html")};
  preview.insert(preview.begin(), "data");
  call(preview);
  call({"bandwidth", "-n", "2", "--max-mib", "1"});
  call({"bench", "--model", kHubModel, "--seq", "8", "--steps", "1", "--warmup", "0"});
}

void Canaries::expect_nowhere() const {
  EXPECT_FALSE(holds_secret(said_, kStem)) << said_;
  EXPECT_EQ(most_of_the_run_, 3U) << "a launcher and two ranks";
  EXPECT_FALSE(holds_secret(processes_, kStem)) << processes_;
  std::size_t files = 0;
  for (const std::string& name : listing(folder_.path())) {
    EXPECT_FALSE(holds_secret(name, kStem)) << name;
    if (fs::is_regular_file(folder_.path() / name)) {
      EXPECT_FALSE(holds_secret(read_file(folder_.path() / name), kStem)) << name;
      ++files;
    }
  }
  for (const char* const name :
       {"run/log.jsonl", "run/config.toml", "run/summary.json", "run/plan.json", "run/tensorboard",
        "run/wandb", "run/checkpoints", "predictions", "exported", "exported.gguf", "imported",
        "job.sbatch", "compared.html", "preview.html", "copied.toml", "sweep/n1/log.jsonl",
        "hf/hub"}) {
    EXPECT_TRUE(fs::exists(at(name))) << name;
  }
  EXPECT_GT(files, 40U);
}

// Each server got its own in one header, and else nothing; the hub's storage not even that.
void Canaries::expect_at_servers_alone() const {
  const auto all_but_authorization = [](const Asked& asked) {
    std::string text = asked.method + asked.target + asked.body;
    for (const auto& [name, value] : asked.headers) {
      text += name + (name == "Authorization" ? "" : value);
    }
    return text;
  };
  std::set<std::string> at_mlflow;
  for (const Asked& asked : mlflow_.asked()) {
    EXPECT_FALSE(holds_secret(all_but_authorization(asked), kStem)) << asked.target;
    at_mlflow.insert(asked.header("Authorization"));
  }
  // Canary7f3a-user:Canary7f3a-password
  EXPECT_THAT(at_mlflow, testing::UnorderedElementsAre(
                             "Bearer " + kTrackingToken,
                             "Basic Q2FuYXJ5N2YzYS11c2VyOkNhbmFyeTdmM2EtcGFzc3dvcmQ="));
  for (const Asked& asked : hub_.asked()) {
    EXPECT_FALSE(holds_secret(all_but_authorization(asked), kStem)) << asked.target;
    EXPECT_EQ(asked.header("Authorization"), "Bearer " + kHubToken);
  }
  EXPECT_FALSE(hub_.asked_of_storage().empty());
  for (const Asked& asked : hub_.asked_of_storage()) {
    EXPECT_EQ(asked.header("Authorization"), "");
    EXPECT_FALSE(holds_secret(all_but_authorization(asked), kStem)) << asked.target;
  }
}

TEST_F(Canaries, OfNoVerbReachFilesOutputProcessesOrOtherServers) {
  call_all_verbs();
  EXPECT_EQ(called_, all_verbs()) << "a verb that this test does not call";
  expect_nowhere();
  expect_at_servers_alone();
}

// The search finds what it is to find.
TEST(Search, FindsSecretsAsTheyAreAndInBase64) {
  EXPECT_TRUE(holds_secret("x" + kHubToken, kStem));
  EXPECT_TRUE(holds_secret(base64_inside("me:" + kHubToken, 0), kStem));
  EXPECT_TRUE(holds_secret(base64_inside("user:" + kHubToken, 0), kStem));
  EXPECT_TRUE(holds_secret(base64_inside("name:" + kHubToken + "   ", 0), kStem));
  EXPECT_TRUE(holds_secret(base64_inside("a-user:" + kHubToken, 0), kStem));
  EXPECT_FALSE(holds_secret("Canary7f3b", kStem));
  Program waits({}, {}, "echo ready; sleep 60; : " + kHubToken);
  waits.wait_for("ready");
  EXPECT_TRUE(holds_secret(command_lines(), kStem));
}

}  // namespace
}  // namespace sherd::test
