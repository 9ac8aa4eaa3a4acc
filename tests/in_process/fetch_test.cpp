// `sherd fetch`, with a hub on loopback.

#include "tests/in_process/run_program.h"
#include "tests/support/fetching.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

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
  refuse(65, "the hub lists the SHA-256 " + hub.digest("model.safetensors") +
                 ", and the received file has");
  EXPECT_FALSE(fs::exists(blob("model.safetensors").string() + ".incomplete"));
  hub.at_storage = [](const Asked&, Answer answer) {
    answer.body += "more";
    return answer;
  };
  refuse(65, "that were announced");
  const std::string other(hub.files.at("config.json").size(), ' ');
  hub.before = [&](const Asked& asked) -> std::optional<Answer> {
    return asked.path.ends_with("/config.json") ? std::optional(Answer{200, other}) : std::nullopt;
  };
  hub.at_storage = [](const Asked&, Answer answer) { return answer; };
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("git blob SHA-1"));
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
  refuse(66, "has no model tiny-org/stories, or it is private and needs a token");
  answer(401, "", "Invalid credentials in Authorization header");
  refuse(77, "It may have expired", {"HF_TOKEN=x"});
  answer(403, "", "not\x1b[31m for you");
  refuse(77, "(status 403: not?[31m for you). The token's account", {"HF_TOKEN=x"});
  answer(429, "");
  refuse(69, "It accepts no more requests for now");
  answer(500, "", "on fire");
  refuse(69, "status 500: on fire");
  hub.before = [](const Asked&) { return std::nullopt; };
  EXPECT_THAT(expect_code(66, kFetch + Arguments{"--revision", "v9"}, variables()).err,
              HasSubstr("tiny-org/stories has no revision 'v9'"));
}

TEST_F(Fetch, RefusesNamesThatLeadOutOfTheFolder) {
  for (const std::string name : {"../../../escaped.json", "/tmp/escaped.json", "a//b", "."}) {
    hub.listed_as["generation_config.json"] = name;
    refuse(65, "points outside the repository: nothing is fetched");
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

TEST_F(Fetch, ExplainsWhatARefusalOfAFileMeans) {
  const auto file_answer = [&](int status, const std::string& code) {
    hub.before = [=](const Asked& asked) {
      return asked.path.find("/resolve/") == std::string::npos
                 ? std::nullopt
                 : std::optional(Answer{status, "{}", {{"X-Error-Code", code}}});
    };
  };
  file_answer(403, "GatedRepo");  // the list of a gated model is open to all
  refuse(77, "is gated, and no token was sent: accept its conditions");
  file_answer(404, "EntryNotFound");
  refuse(66, "the hub lists this file but does not have it");
  hub.before = [](const Asked&) { return std::nullopt; };
  hub.at_storage = [](const Asked&, const Answer&) { return Answer{403, "SignatureExpired"}; };
  const Ended ended = expect_code(69, kFetch, variables({"HF_TOKEN=x"}));
  EXPECT_THAT(ended.err, HasSubstr("/model.safetensors: the hub redirects to this host for a file "
                                   "of tiny-org/stories, and it returned status 403"));
  EXPECT_THAT(ended.err, Not(HasSubstr("HF_TOKEN")));
  EXPECT_THAT(ended.err, Not(HasSubstr("canary")));
}

TEST_F(Fetch, TakesABusyHubsAnswerLater) {
  hub.before = [tries = 0](const Asked&) mutable {
    return ++tries == 1 ? std::optional(Answer{503, "busy"}) : std::nullopt;
  };
  expect_code(0, kFetch, variables());
}

TEST_F(Fetch, ReadsTheListInPages) {
  const auto list = hub.tree();
  std::string next = "?recursive=true&cursor=2";
  hub.before = [&](const Asked& asked) -> std::optional<Answer> {
    if (asked.path.find("/tree/") == std::string::npos) {
      return std::nullopt;
    }
    const bool is_first = asked.target.find("cursor") == std::string::npos;
    const auto half = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
    const nlohmann::json page(is_first ? std::vector<nlohmann::json>(list.begin(), half)
                                       : std::vector<nlohmann::json>(half, list.end()));
    Answer answer{200, page.dump()};
    if (is_first) {
      const std::string url = next.starts_with("?") ? hub.url() + asked.path + next : next;
      answer.headers["Link"] = "<" + url + ">; rel=\"next\"";
    }
    return answer;
  };
  expect_code(0, kFetch, variables());
  fs::remove_all(home());
  next = "http://127.0.0.2:9/elsewhere";
  refuse(65, "the list of files continues elsewhere");
}

TEST_F(Fetch, RefusesAListThatCannotBeRight) {
  auto list = hub.tree();
  hub.before = [&](const Asked& asked) {
    return asked.path.find("/tree/") == std::string::npos ? std::nullopt
                                                          : std::optional(Answer{200, list.dump()});
  };
  const auto original = list;
  const auto refuse_with = [&](const std::string& file, const auto& spoil, const std::string& why) {
    list = original;
    for (auto& entry : list) {
      if (entry.at("path") == file) {
        spoil(entry);
      }
    }
    refuse(65, why);
  };
  const std::string weights = "model.safetensors";
  refuse_with(
      weights, [](auto& file) { file["size"] = "many"; }, "without 'path' or 'size'");
  refuse_with(
      weights, [](auto& file) { file["size"] = -1; }, "without 'path' or 'size'");
  refuse_with(
      weights, [](auto& file) { file["path"] = 7; }, "without 'path' or 'size'");
  refuse_with(
      weights, [](auto& file) { file["lfs"].erase("oid"); }, "no text 'oid'");
  refuse_with(
      weights, [](auto& file) { file["lfs"]["oid"] = "../x"; },
      "'oid' is not of 64 hexadecimal digits");
  refuse_with(
      weights, [](auto& file) { file.erase("lfs"); }, "the hub lists the git blob SHA-1 aaaa");
  refuse_with(
      weights, [](auto& file) { file["size"] = 5; }, "bytes, not the 5 that were announced");
  list = 7;
  refuse(65, "no list of files");
}

TEST_F(Fetch, RefusesAnotherCommitThanItAskedFor) {
  const std::string other(40, 'b');
  hub.before = [&](const Asked& asked) {
    return asked.path.ends_with("/revision/" + other)
               ? std::optional(Answer{200, R"({"sha": ")" + kCommit + R"("})"})
               : std::nullopt;
  };
  EXPECT_THAT(expect_code(65, kFetch + Arguments{"--revision", other}, variables()).err,
              HasSubstr("the hub was asked for the commit " + other + ", and returned " + kCommit));
  const Ended offline =
      expect_code(66, kFetch + Arguments{"--revision", other}, variables({"HF_HUB_OFFLINE=1"}));
  EXPECT_THAT(offline.err, HasSubstr("sherd fetch " + kHubModel + " --revision " + other));
}

TEST_F(Fetch, TakesTheShardsThatTheIndexNames) {
  const std::string index = "model.safetensors.index.json";
  hub.files["weights-a.safetensors"] = hub.files.at("model.safetensors");
  hub.files["model-00009-of-00009.safetensors"] = "of another time";
  hub.files.erase("model.safetensors");
  hub.files[index] = R"({"weight_map": {"x": "weights-a.safetensors"}})";
  expect_code(0, kFetch, variables());
  EXPECT_TRUE(fs::exists(snapshot() / "weights-a.safetensors"));
  EXPECT_FALSE(fs::exists(snapshot() / "model-00009-of-00009.safetensors"));
  hub.files[index] = R"({"weight_map": {"x": "weights-a.safetensors", "y": "b.safetensors"}})";
  EXPECT_THAT(expect_code(65, kFetch, variables()).err,
              HasSubstr("has no b.safetensors, which its model.safetensors.index.json names"));
  hub.files[index] = R"({"weight_map": {}})";
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("no index of weights"));
}

TEST_F(Fetch, CompletesWhatAnotherToolBrought) {
  expect_code(0, kFetch, variables());
  fs::remove(snapshot() / "tokenizer_config.json");
  expect_code(0, kFetch + Arguments{"--revision", kCommit}, variables());
  EXPECT_TRUE(fs::exists(snapshot() / "tokenizer_config.json"));
}

TEST_F(Fetch, SendsNoTokenWhereOthersReadAlong) {
  // A proxy on loopback stands for one anywhere; it does not know what it is asked for.
  const Ended ended =
      expect_code(66, kFetch, variables({"HF_TOKEN=hf_canary", "http_proxy=" + hub.url()}));
  EXPECT_THAT(ended.err, HasSubstr("the token is not sent to " + hub.url() +
                                   ": the connection is not encrypted"));
  EXPECT_EQ(ended.err.find("the token is not sent"), ended.err.rfind("the token is not sent"));
  for (const Asked& asked : hub.asked()) {
    EXPECT_EQ(asked.header("Authorization"), "");
  }
}

TEST_F(Fetch, ShowsNoPasswordOfTheEndpoint) {
  const std::string endpoint = "HF_ENDPOINT=http://me:canary@" + hub.url().substr(7);
  hub.before = [](const Asked&) {
    return std::optional(Answer{403, "{}", {{"X-Error-Code", "GatedRepo"}}});
  };
  const Arguments home_only{"HF_HOME=" + home().string()};
  EXPECT_THAT(expect_code(77, kFetch, home_only + Arguments{endpoint}).err,
              Not(HasSubstr("canary")));
  hub.before = [](const Asked&) {
    return std::optional(Answer{401, "{}", {{"X-Error-Code", "RepoNotFound"}}});
  };
  EXPECT_THAT(expect_code(66, kFetch, home_only + Arguments{endpoint}).err,
              Not(HasSubstr("canary")));
  EXPECT_THAT(
      expect_code(64, kFetch, home_only + Arguments{"HF_ENDPOINT=http://me:can/ary@host"}).err,
      Not(HasSubstr("can/ary")));
}

TEST_F(Fetch, RefusesWhatIsNoModelForIt) {
  hub.files.erase("model.safetensors");
  hub.files["model-q4.safetensors"] = "x";
  EXPECT_THAT(
      expect_code(65, kFetch, variables()).err,
      HasSubstr("has no model.safetensors: no weights in safetensors; pytorch_model.bin can "
                "run code when read"));
  hub.files.erase("tokenizer.json");
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("has no tokenizer.json"));
  hub.files.erase("config.json");
  EXPECT_THAT(expect_code(65, kFetch, variables()).err, HasSubstr("has no config.json"));
}

TEST_F(Fetch, SaysWhatStandsInTheWay) {
  refuse(66, "HF_HUB_OFFLINE is set. Fetch it on a host with a network: sherd fetch " + kHubModel,
         {"HF_HUB_OFFLINE=1"});
  const std::string file = folder.write("file", "");
  refuse(73, "HF_HUB_CACHE (or HF_HOME) can name another cache", {"HF_HUB_CACHE=" + file + "/hub"});
  refuse(69, "Check the address, the network and the proxy variables",
         {"http_proxy=http://127.0.0.1:1"});
  const auto wrong = [&](int code, const Arguments& words, const std::string& why) {
    EXPECT_THAT(expect_code(code, words, variables()).err, HasSubstr(why));
  };
  wrong(64, {"fetch"}, "name is required");
  wrong(64, {"fetch", "stories"}, "'stories' is not a name on a hub");
  wrong(64, {"fetch", "../x"}, "is not a name on a hub");
  wrong(64, kFetch + Arguments{"--revision", "../x"}, "'../x' is not a revision");
  EXPECT_THAT(expect_code(64, kFetch, {"HF_ENDPOINT=" + hub.url()}).err, HasSubstr("set HF_HOME"));
}

// An adapter names the commit of its base, which is used although the main branch is another now.
TEST_F(Fetch, TakesTheCommitThatAnAdapterNames) {
  expect_code(0,
              train_by_name() + Arguments{"--adapter.kind", "lora", "--checkpoint.export", "end"},
              variables());
  const fs::path adapter = folder.path() / "run/export";
  auto config = nlohmann::json::parse(read_file(adapter / "adapter_config.json"));
  EXPECT_EQ(config.at("base_model_name_or_path"), kHubModel);
  EXPECT_EQ(config.at("revision"), kCommit);
  std::ofstream(repo() / "refs/main") << std::string(40, 'b');
  const Arguments generate = {"generate", adapter, "--prompt", "Tom", "--max-new-tokens", "4"};
  const Arguments offline = variables({"HF_HUB_OFFLINE=1"});
  expect_code(0, generate, offline);
  config["revision"] = "v9";
  std::ofstream(adapter / "adapter_config.json") << config;
  EXPECT_THAT(expect_code(66, generate, offline).err, HasSubstr("--revision v9"));
}

TEST_F(FetchData, BringsTheFilesOfAConfiguration) {
  const Arguments fetch{"fetch", kHubData, "--dataset"};
  EXPECT_THAT(expect_code(64, fetch, variables_of_data()).err,
              HasSubstr("has several configurations: other, plain_text"));
  const Ended ended =
      expect_code(0, fetch + Arguments{"--config", "plain_text"}, variables_of_data());
  const fs::path there = home() / "hub/datasets--tiny-org--questions/snapshots" / kCommit;
  EXPECT_EQ(ended.out, there.string() + "\n");
  EXPECT_TRUE(fs::exists(there / "README.md"));
  EXPECT_FALSE(fs::exists(there / "other"));
  EXPECT_FALSE(fs::exists(there / "script.py"));
  EXPECT_EQ(read_file(there / "plain_text/validation-00000-of-00001.parquet"),
            parquet("squad-v2.parquet"));
  EXPECT_EQ(read_file(there / "plain_text/train-00000-of-00001.parquet"),
            parquet("squad-32.parquet"));
  EXPECT_EQ(expect_code(0, fetch, variables_of_data({"HF_HUB_OFFLINE=1"})).out, ended.out);
  EXPECT_THAT(expect_code(66, fetch + Arguments{"--config", "x"}, variables_of_data()).err,
              HasSubstr("has no configuration 'x'. It has: other, plain_text"));
  EXPECT_THAT(expect_code(64, kFetch + Arguments{"--config", "x"}, variables_of_data()).err,
              HasSubstr("--dataset"));
}

}  // namespace
}  // namespace sherd::test
