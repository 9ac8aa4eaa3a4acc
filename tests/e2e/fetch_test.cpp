// `sherd fetch` and hub names in model.path, with a hub on loopback.

#include "tests/e2e/training.h"
#include "tests/support/hub_server.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const Arguments kFetch = {"fetch", kHubModel};

class Fetch : public testing::Test {
 protected:
  [[nodiscard]] Arguments variables(const Arguments& more = {}) const {
    return Arguments{"HF_HOME=" + home().string(), "HF_ENDPOINT=" + hub.url()} + more;
  }
  [[nodiscard]] fs::path home() const { return folder.path() / "hf"; }
  [[nodiscard]] fs::path repo() const { return home() / "hub/models--tiny-org--stories"; }
  [[nodiscard]] fs::path snapshot() const { return repo() / "snapshots" / kCommit; }
  [[nodiscard]] fs::path blob(const std::string& path) const {
    return repo() / "blobs" / hub.digest(path);
  }
  [[nodiscard]] Arguments train_by_name() const {
    Arguments run = train(folder.path() / "run", "2");
    std::replace(run.begin(), run.end(), kModel, kHubModel);
    return run;
  }
  // Expects the fetch to fail with these words and no other blob than whole ones.
  void refuse(int code, const std::string& why, const Arguments& more = {}) const {
    EXPECT_THAT(expect_code(code, kFetch, variables(more)).err, HasSubstr(why));
    EXPECT_FALSE(fs::exists(blob("model.safetensors")));
  }

  TempFolder folder;
  HubServer hub{kModel};
};

TEST_F(Fetch, FillsTheCacheAsHuggingFacesLibrariesDo) {
  const Ended ended = expect_code(0, kFetch, variables());
  EXPECT_EQ(ended.out, snapshot().string() + "\n");
  EXPECT_THAT(ended.err, HasSubstr("pickles can run code when read: pytorch_model.bin"));
  EXPECT_EQ(read_file(repo() / "refs/main"), kCommit);
  for (const char* const name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_EQ(fs::read_symlink(snapshot() / name), fs::path("../../blobs") / hub.digest(name));
    EXPECT_EQ(read_file(snapshot() / name), read_file(fs::path(kModel) / name)) << name;
  }
  for (const auto& entry : fs::directory_iterator(repo() / "blobs")) {
    EXPECT_NE(entry.path().extension(), ".incomplete") << entry.path();
  }
  const std::size_t asked = hub.asked().size();
  EXPECT_EQ(expect_code(0, kFetch, variables()).out, ended.out);
  EXPECT_EQ(hub.asked().size(), asked + 2);  // the revision, and the list of its files
  EXPECT_EQ(expect_code(0, kFetch + Arguments{"--revision", kCommit}, variables()).out, ended.out);
  EXPECT_EQ(hub.asked().size(), asked + 2);  // a commit stays what it is
  const Ended offline = expect_code(0, kFetch, variables({"HF_HUB_OFFLINE=1"}));
  EXPECT_EQ(offline.out, ended.out);
}

TEST_F(Fetch, GoesOnWhereTheTransferBroke) {
  const std::size_t half = hub.files.at("model.safetensors").size() / 2;
  hub.at_storage = [&, tries = 0](const Asked&, Answer answer) mutable {
    answer.cut_after_bytes = ++tries == 1 ? half : std::string::npos;
    return answer;
  };
  expect_code(0, kFetch, variables());
  const auto asked = hub.asked_of_storage();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[1].header("Range"), "bytes=" + std::to_string(half) + "-");
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), hub.files.at("model.safetensors"));
}

TEST_F(Fetch, GoesOnFromWhatAnEarlierOneLeftIfItIsRight) {
  const std::string& weights = hub.files.at("model.safetensors");
  const fs::path part = blob("model.safetensors").string() + ".incomplete";
  fs::create_directories(part.parent_path());
  std::ofstream(part) << weights.substr(0, 1000);
  expect_code(0, kFetch, variables());
  EXPECT_EQ(hub.asked_of_storage().at(0).header("Range"), "bytes=1000-");
  fs::remove_all(repo());
  fs::create_directories(part.parent_path());
  std::ofstream(part) << std::string(1000, 'x');
  EXPECT_THAT(expect_code(0, kFetch, variables()).err, HasSubstr("is not its beginning"));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), weights);
}

TEST_F(Fetch, RefusesOtherBytesThanTheHubSaid) {
  hub.at_storage = [](const Asked&, Answer answer) {
    answer.body[100] = static_cast<char>(~answer.body[100]);
    return answer;
  };
  refuse(65, "the hub says " + std::to_string(hub.files.at("model.safetensors").size()) +
                 " bytes and the SHA-256 " + hub.digest("model.safetensors"));
  EXPECT_FALSE(fs::exists(blob("model.safetensors").string() + ".incomplete"));
  hub.at_storage = [](const Asked&, Answer answer) {
    answer.body += "more";
    return answer;
  };
  refuse(65, "more bytes come than");
  hub.before = [&](const Asked& asked) -> std::optional<Answer> {
    return asked.path.ends_with("/config.json") ? std::optional(Answer{200, "{}"}) : std::nullopt;
  };
  hub.at_storage = [](const Asked&, Answer answer) { return answer; };
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("git blob SHA-1"));
}

TEST_F(Fetch, TheTokenGoesToTheHubAlone) {
  const std::string token = "hf_canary0123456789";
  hub.before = [&](const Asked& asked) -> std::optional<Answer> {
    return asked.header("Authorization") == "Bearer " + token
               ? std::nullopt
               : std::optional(Answer{401, "{}", {{"X-Error-Code", "GatedRepo"}}});
  };
  refuse(77, "is gated, and no token was given: accept its conditions at " + hub.url() +
                 "/tiny-org/stories");
  fs::create_directories(home());
  std::ofstream(home() / "token") << token << "\n";
  const Ended by_file = expect_code(0, kFetch, variables());
  fs::remove(home() / "token");
  fs::remove_all(repo());
  Program program(kFetch, variables({"HF_TOKEN=" + token}));
  EXPECT_THAT(read_file("/proc/" + std::to_string(program.pid()) + "/cmdline"),
              Not(HasSubstr("canary")));
  const Ended by_variable = program.finish();
  EXPECT_EQ(by_variable.code, 0);
  for (const Ended& ended : {by_file, by_variable}) {
    EXPECT_THAT(ended.out + ended.err, Not(HasSubstr("canary")));
  }
  ASSERT_FALSE(hub.asked_of_storage().empty());
  for (const Asked& asked : hub.asked_of_storage()) {
    for (const auto& [name, value] : asked.headers) {
      EXPECT_THAT(value, Not(HasSubstr("hf_canary"))) << name;
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file()) {
      EXPECT_THAT(read_file(entry.path()), Not(HasSubstr("canary"))) << entry.path();
    }
  }
}

TEST_F(Fetch, ExplainsRefusals) {
  const auto answer = [&](int status, const std::string& code, const std::string& message = "") {
    hub.before = [=](const Asked&) {
      return Answer{status, "{}", {{"X-Error-Code", code}, {"X-Error-Message", message}}};
    };
  };
  answer(403, "GatedRepo");
  refuse(77, "the token's account has no access", {"HF_TOKEN=x"});
  answer(401, "RepoNotFound");
  refuse(66, "has no model tiny-org/stories, or a private one that wants a token");
  answer(401, "", "Invalid credentials in Authorization header");
  refuse(77, "The token may have expired", {"HF_TOKEN=x"});
  answer(429, "");
  refuse(69, "It takes no more requests for now");
  answer(500, "", "on fire");
  refuse(69, "status 500: on fire");
  hub.before = [](const Asked&) { return std::nullopt; };
  EXPECT_THAT(expect_code(66, kFetch + Arguments{"--revision", "v9"}, variables()).err,
              HasSubstr("tiny-org/stories has no revision 'v9'"));
}

TEST_F(Fetch, RefusesNamesThatLeadOutOfTheFolder) {
  for (const std::string name : {"../../../escaped.json", "/tmp/escaped.json", "a//b", "."}) {
    hub.listed_as["generation_config.json"] = name;
    refuse(65, "would lead out of the repository: nothing is fetched");
  }
  hub.listed_as.clear();
  hub.before = [](const Asked& asked) -> std::optional<Answer> {
    return asked.path.ends_with("/revision/main")
               ? std::optional(Answer{200, R"({"sha": "../../../x"})"})
               : std::nullopt;
  };
  refuse(65, "'sha' is not of 40 hexadecimal digits");
  EXPECT_FALSE(fs::exists(home()));
}

TEST_F(Fetch, RefusesWhatIsNoModelForIt) {
  hub.files.erase("model.safetensors");
  hub.files["model-q4.safetensors"] = "x";
  EXPECT_THAT(expect_code(65, kFetch, variables()).err,
              HasSubstr("has no weights in safetensors: pytorch_model.bin can run code when read"));
  hub.files.erase("tokenizer.json");
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("has no tokenizer.json"));
  hub.files.erase("config.json");
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("has no config.json"));
}

TEST_F(Fetch, SaysWhatStandsInTheWay) {
  refuse(66, "HF_HUB_OFFLINE is set. Fetch it where there is a network: sherd fetch " + kHubModel,
         {"HF_HUB_OFFLINE=1"});
  const std::string file = folder.write("file", "");
  refuse(73, "HF_HUB_CACHE (or HF_HOME) names a cache in another place",
         {"HF_HUB_CACHE=" + file + "/hub"});
  refuse(69, "Look at the address, the network and the proxy's variables",
         {"http_proxy=http://127.0.0.1:1"});
  const auto wrong = [&](int code, const Arguments& words, const std::string& why) {
    EXPECT_THAT(expect_code(code, words, variables()).err, HasSubstr(why));
  };
  wrong(64, {"fetch"}, "name is required");
  wrong(64, {"fetch", "stories"}, "'stories' is no name on a hub");
  wrong(64, {"fetch", "../x"}, "is no name on a hub");
  wrong(64, kFetch + Arguments{"--revision", "../x"}, "'../x' is no revision");
  wrong(64, {"fetch", "rajpurkar/squad", "--dataset"}, "data sets are not fetched yet");
  EXPECT_THAT(expect_code(64, kFetch, {"HF_ENDPOINT=" + hub.url()}).err, HasSubstr("set HF_HOME"));
}

TEST_F(Fetch, TwoAtOnceFetchOnce) {
  Program one(kFetch, variables());
  Program two(kFetch, variables());
  EXPECT_EQ(one.finish().code, 0);
  EXPECT_EQ(two.finish().code, 0);
  EXPECT_EQ(hub.asked_of_storage().size(), 1U);
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), hub.files.at("model.safetensors"));
}

TEST_F(Fetch, ARunTakesTheNameOfAModel) {
  const Ended reading = expect_code(
      66, {"plan", "--model.path", kHubModel, "--data.train", kQuestions, "--train.output", "x"},
      variables());
  EXPECT_THAT(reading.err,
              HasSubstr("Fetch it where there is a network: sherd fetch " + kHubModel));
  EXPECT_TRUE(hub.asked().empty());
  const Ended first = expect_code(0, on_ranks(2, train_by_name()), variables());
  EXPECT_THAT(first.out, HasSubstr("model.safetensors: "));
  EXPECT_EQ(hub.asked_of_storage().size(), 1U);
  EXPECT_THAT(read_file(folder.path() / "run/config.toml"), HasSubstr(snapshot().string()));
  const TempFolder other;
  expect_code(0, on_ranks(2, train(other.path() / "run", "2")));
  EXPECT_EQ(column(folder.path() / "run", "loss"), column(other.path() / "run", "loss"));
}

TEST_F(Fetch, ARunSaysOnceWhyANameIsNoModel) {
  const Ended ended =
      expect_code(66, on_ranks(2, train_by_name()), variables({"HF_HUB_OFFLINE=1"}));
  EXPECT_THAT(ended.err,
              HasSubstr("model.path = \"tiny-org/stories\": there is no such folder, and as the "
                        "name of a model on a hub: "));
  const Arguments second_rank = {"RANK=1",
                                 "LOCAL_RANK=1",
                                 "WORLD_SIZE=2",
                                 "LOCAL_WORLD_SIZE=2",
                                 "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=29511",
                                 "HF_HUB_OFFLINE=1"};
  EXPECT_EQ(expect_code(66, train_by_name(), variables(second_rank)).err, "");
  Arguments run = train(folder.path() / "run", "2");
  std::replace(run.begin(), run.end(), kQuestions, std::string("rajpurkar/squad"));
  EXPECT_THAT(expect_code(66, run, variables()).err,
              HasSubstr("data.train = \"rajpurkar/squad\": there is no such file, and data sets"));
}

}  // namespace
}  // namespace sherd::test
