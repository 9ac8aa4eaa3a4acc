// Bad input ends with the right exit code, a message that names it, and nothing half-written.

#include <cstdint>
#include <cstring>
#include <functional>

#include <sys/stat.h>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

// Replaces the one occurrence of `from` in a file.
void edit(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << path;
  text.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << text;
}

void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A safetensors file with its header changed; the data stays.
void edit_header(const fs::path& path, const std::function<void(nlohmann::json&)>& change) {
  const std::string bytes = read_file(path);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  auto header = nlohmann::json::parse(bytes.substr(sizeof size, size));
  change(header);
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string start(sizeof length, '\0');
  std::memcpy(start.data(), &length, sizeof length);
  overwrite(path, start + text + bytes.substr(sizeof size + size));
}

constexpr const char* kNorm = "model.norm.weight";  // [64]

// One way to break a folder that holds a model and questions.
struct Case {
  std::string name;
  int code;
  std::vector<std::string> parts;  // of the message
  std::function<void(const fs::path& model, const fs::path& questions)> damage;
};

void PrintTo(const Case& input, std::ostream* out) {
  *out << input.name;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"ModelFolderMissing",
       66,
       {"the model folder", "does not exist"},
       [](const fs::path& model, const fs::path&) { fs::remove_all(model); }},
      {"WeightsMissing",
       66,
       {"model.safetensors"},
       [](const fs::path& model, const fs::path&) { fs::remove(model / "model.safetensors"); }},
      {"TokenizerMissing",
       66,
       {"tokenizer.json"},
       [](const fs::path& model, const fs::path&) { fs::remove(model / "tokenizer.json"); }},
      {"ConfigIsNoJson",
       65,
       {"config.json", "line 1, column 7"},
       [](const fs::path& model, const fs::path&) {
         overwrite(model / "config.json", "{\"a\": ");
       }},
      {"ConfigIsAPipe",
       65,
       {"config.json", "expected a regular file, found a pipe"},
       [](const fs::path& model, const fs::path&) {
         fs::remove(model / "config.json");
         ASSERT_EQ(::mkfifo((model / "config.json").c_str(), 0600), 0);
       }},
      {"ConfigNestedDeep",
       65,
       {"config.json", "nested deeper than 64 levels"},
       [](const fs::path& model, const fs::path&) {
         edit(model / "config.json", "\"hidden_size\": 64",
              "\"hidden_size\": " + std::string(100'000, '[') + std::string(100'000, ']'));
       }},
      {"TokenizerIsADevice",
       65,
       {"tokenizer.json", "expected a regular file, found a device"},
       [](const fs::path& model, const fs::path&) {
         fs::remove(model / "tokenizer.json");
         fs::create_symlink("/dev/zero", model / "tokenizer.json");
       }},
      {"ModelTypeUnknown",
       65,
       {"config.json", "model_type", "gpt_neox"},
       [](const fs::path& model, const fs::path&) {
         edit(model / "config.json", "\"model_type\": \"llama\"", "\"model_type\": \"gpt_neox\"");
       }},
      {"AttentionBias",
       65,
       {"config.json", "attention_bias", "not implemented"},
       [](const fs::path& model, const fs::path&) {
         edit(model / "config.json", "\"attention_bias\": false", "\"attention_bias\": true");
       }},
      {"WidthOfWrongType",
       65,
       {"config.json", "hidden_size"},
       [](const fs::path& model, const fs::path&) {
         edit(model / "config.json", "\"hidden_size\": 64", "\"hidden_size\": \"64\"");
       }},
      {"WeightsTruncated",
       65,
       {"model.safetensors"},
       [](const fs::path& model, const fs::path&) {
         fs::resize_file(model / "model.safetensors", 500'000);
       }},
      {"WeightsEmpty",
       65,
       {"model.safetensors"},
       [](const fs::path& model, const fs::path&) {
         fs::resize_file(model / "model.safetensors", 0);
       }},
      {"HeaderLengthLies",
       65,
       {"model.safetensors", "header"},
       [](const fs::path& model, const fs::path&) {
         std::string bytes = read_file(model / "model.safetensors");
         overwrite(model / "model.safetensors",
                   bytes.replace(0, 8, std::string(7, '\xff') + '\x7f'));
       }},
      {"OffsetsOverlap",
       65,
       {"model.safetensors", kNorm},
       [](const fs::path& model, const fs::path&) {
         edit_header(model / "model.safetensors", [](auto& header) {
           header[kNorm]["data_offsets"] = {0, 256};
         });
       }},
      {"ShapeWrong",
       65,
       {"model.safetensors", kNorm, "[8, 8]", "[64]"},
       [](const fs::path& model, const fs::path&) {
         edit_header(model / "model.safetensors", [](auto& header) {
           header[kNorm]["shape"] = {8, 8};
         });
       }},
      {"TensorMissing",
       65,
       {"model.safetensors", kNorm, "is missing"},
       [](const fs::path& model, const fs::path&) {
         edit_header(model / "model.safetensors", [](auto& header) {
           header["other"] = header[kNorm];
           header.erase(kNorm);
         });
       }},
      {"TokenizerIsNoJson",
       65,
       {"tokenizer.json"},
       [](const fs::path& model, const fs::path&) { overwrite(model / "tokenizer.json", "{"); }},
      {"TokenizerLargerThanEmbedding",
       65,
       {"tokenizer.json", "embedding"},
       [](const fs::path& model, const fs::path&) {
         auto tokenizer = nlohmann::json::parse(read_file(model / "tokenizer.json"));
         tokenizer["added_tokens"].push_back({{"id", 512},
                                              {"content", "<new>"},
                                              {"single_word", false},
                                              {"lstrip", false},
                                              {"rstrip", false},
                                              {"normalized", false},
                                              {"special", true}});
         overwrite(model / "tokenizer.json", tokenizer.dump());
       }},
      {"QuestionsMissing",
       66,
       {"questions.json"},
       [](const fs::path&, const fs::path& questions) { fs::remove(questions); }},
      {"QuestionsAreNoJson",
       65,
       {"questions.json"},
       [](const fs::path&, const fs::path& questions) { overwrite(questions, "[1,"); }},
      {"QuestionsAreAPipe",
       65,
       {"questions.json", "expected a regular file, found a pipe"},
       [](const fs::path&, const fs::path& questions) {
         fs::remove(questions);
         ASSERT_EQ(::mkfifo(questions.c_str(), 0600), 0);
       }},
      {"QuestionWithoutId",
       65,
       {"questions.json", "/data/0/paragraphs/0/qas/0/id", "is missing"},
       [](const fs::path&, const fs::path& questions) {
         auto squad = nlohmann::json::parse(read_file(questions));
         squad["data"][0]["paragraphs"][0]["qas"][0].erase("id");
         overwrite(questions, squad.dump());
       }},
      {"AnswerMisplaced",
       65,
       {"/qas/0/answers/0/answer_start", "is not at character 0"},
       [](const fs::path&, const fs::path& questions) {
         auto squad = nlohmann::json::parse(read_file(questions));
         squad["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 0;
         overwrite(questions, squad.dump());
       }},
  };
  return all;
}

class BadInput : public testing::TestWithParam<Case> {};

// Two ranks, and one message.
TEST_P(BadInput, EndsWithItsCodeAndLeavesNothing) {
  const TempFolder folder;
  const fs::path model = copy_of_model(folder.path() / "model");
  const fs::path questions = folder.path() / "questions.json";
  fs::copy_file(kQuestions, questions);
  GetParam().damage(model, questions);
  Arguments arguments = train(folder.path() / "run") + Arguments{"--train.micro_batch", "6"};
  std::replace(arguments.begin(), arguments.end(), kModel, model.string());
  std::replace(arguments.begin(), arguments.end(), kQuestions, questions.string());
  const Ended ended = expect_code(GetParam().code, on_ranks(2, arguments));
  for (const std::string& part : GetParam().parts) {
    EXPECT_THAT(ended.err, HasSubstr(part));
  }
  EXPECT_FALSE(fs::exists(folder.path() / "run")) << testing::PrintToString(listing(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Files, BadInput, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

// Expects the code and a part of the message.
void refuse(int code, const Arguments& arguments, const std::vector<std::string>& parts) {
  const Ended ended = expect_code(code, arguments);
  for (const std::string& part : parts) {
    EXPECT_THAT(ended.err, HasSubstr(part));
  }
}

TEST(BadConfig, EveryFaultIsNamedWithItsPlace) {
  const TempFolder folder;
  const std::string missing = folder.path() / "none.toml";
  refuse(64, {"train", missing}, {missing});
  refuse(64, {"train", "--train.seed", "1", "--log.every_steps=2", missing}, {missing});
  refuse(64, {"train", folder.write("cut.toml", "[model]\npath = \"a")}, {"cut.toml:2"});
  const std::string faulty = folder.write(
      "faulty.toml", "[model]\npath = 5\n[optim]\nlearning_rate = 1e-3\nlr = \"big\"\n");
  refuse(64, {"train", faulty},
         {"faulty.toml:2", "faulty.toml:4", "optim.learning_rate", "faulty.toml:5",
          "data.train is missing"});
  refuse(64, {"train", "--model.path", kModel, "--data.train", kQuestions},
         {"train.output is missing"});
  const std::string typo = folder.write("typo.toml", "[train]\nglobal_bach = 4\n");
  refuse(64, {"train", typo}, {"typo.toml:2", "global_bach", "global_batch"});
}

TEST(BadModelName, OfAFolderOrAHubIsTold) {
  refuse(66, {"eval", "--model", "./no-such-model", "--data", kQuestions},
         {"does not exist", "`sherd fetch ORG/NAME` downloads one"});
  const TempFolder home;
  const Ended offline =
      expect_code(66, {"eval", "--model", "HuggingFaceTB/SmolLM2-135M", "--data", kQuestions},
                  {"HF_HOME=" + home.path().string(), "HF_HUB_OFFLINE=1"});
  EXPECT_THAT(offline.err, HasSubstr("sherd fetch HuggingFaceTB/SmolLM2-135M"));
}

TEST(Help, IsAWordToo) {
  EXPECT_THAT(expect_code(0, {"help"}).out,
              HasSubstr("Fine-tune, evaluate and export Hugging Face models"));
  EXPECT_THAT(expect_code(0, {"help", "eval"}).out, Not(HasSubstr("1099511627776")));
  EXPECT_THAT(expect_code(0, {"help", "bench"}).out, HasSubstr("--seq INT=512 "));
  for (const char* verb : {"train", "eval", "generate", "export", "bandwidth", "bench", "plan",
                           "check", "sweep", "launch", "slurm"}) {
    const std::string help = expect_code(0, {"help", verb}).out;
    EXPECT_THAT(help, Not(HasSubstr("INT in ["))) << verb;
    EXPECT_THAT(help, Not(HasSubstr("->"))) << verb;
    EXPECT_THAT(help, Not(HasSubstr(":{"))) << verb;
  }
}

TEST(BadFlags, OutOfRange) {
  const Arguments generate{"generate", "tests/data/stories260k-hf"};
  refuse(64, generate + Arguments{"--max-new-tokens", "0"}, {"--max-new-tokens: Value 0 not in"});
  refuse(64, generate + Arguments{"--batch", "0"}, {"--batch: Value 0 not in range"});
  refuse(64, {"bench", "--threads", "0"}, {"--threads: Value 0 not in range 1 to 1024"});
  refuse(64, {"bench", "--link", "0"}, {"--link: 0 must be a number above 0"});
  refuse(64, {"bench", "--lr", "-1"}, {"--lr: -1 must be a number of at least 0"});
  refuse(64, {"bench", "--max-minutes", "long"},
         {"--max-minutes: long must be a number above 0 or none"});
  refuse(64, {"plan", "--memory", "nan"}, {"--memory: nan must be a number above 0"});
  const Arguments slurm{"slurm", "recipes/llama-3-8b.toml", "--nodes", "1"};
  refuse(64, slurm + Arguments{"--stop-before", "0"}, {"--stop-before: Value 0 not in range"});
  refuse(64, slurm + Arguments{"--cpus-per-rank", "0"}, {"--cpus-per-rank: Value 0 not in"});
}

TEST(BadModel, IsLookedForWhereTheProgramWasStarted) {
  const TempFolder folder;
  refuse(66,
         {"train", "--model.path", "none", "--data.train", kQuestions, "--train.output",
          (folder.path() / "run").string()},
         {"the model folder 'none' does not exist; relative paths begin here, in /"});
}

// Every verb that reads a model says what the folder lacks and where to get one.
TEST(BadModel, AFolderWithoutOneSaysWhatItNeeds) {
  const TempFolder folder;
  const fs::path empty = folder.path() / "empty";
  const fs::path without_config = folder.path() / "without-config";
  const fs::path without_tokenizer = folder.path() / "without-tokenizer";
  for (const fs::path& one : {empty, without_config, without_tokenizer}) {
    fs::create_directory(one);
  }
  fs::copy(fs::path(kModel) / "tokenizer.json", without_config);
  fs::copy(fs::path(kModel) / "config.json", without_tokenizer);
  const std::string needs =
      ". A model folder has config.json, model.safetensors and tokenizer.json. `sherd fetch "
      "ORG/NAME` downloads one from a hub and prints its folder.";
  const auto verbs = [&](const fs::path& model) {
    const Arguments recipe = {"--model.path", model, "--data.train", kQuestions};
    return std::vector<Arguments>{
        Arguments{"train"} + recipe + Arguments{"--train.output", folder.path() / "run"},
        Arguments{"data", "preview"} + recipe,
        Arguments{"data", "prepare"} + recipe,
        Arguments{"plan"} + recipe,
        {"eval", model, "--data", kQuestions},
        {"generate", model, "--prompt", "Once"},
        {"chat", model}};
  };
  for (const Arguments& verb : verbs(empty)) {
    refuse(66, verb, {"the model folder '" + empty.string() + "' has no config.json", needs});
  }
  for (const Arguments& verb : verbs(without_config)) {
    refuse(66, verb,
           {"the model folder '" + without_config.string() + "' has no config.json" + needs});
  }
  for (const Arguments& verb : verbs(without_tokenizer)) {
    if (verb.front() == "plan") {  // it needs no tokenizer, and says that it read no data
      EXPECT_THAT(expect_code(0, verb).err,
                  HasSubstr("planned without the data: the model folder '" +
                            without_tokenizer.string() + "' has no tokenizer.json"));
      continue;
    }
    refuse(66, verb,
           {"the model folder '" + without_tokenizer.string() + "' has no tokenizer.json" + needs});
  }
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(BadBatch, NamesNumbersThatWork) {
  const TempFolder folder;
  refuse(64, on_ranks(2, train(folder.path() / "run")) + Arguments{"--train.micro_batch", "4"},
         {"train.global_batch = 12", "2 ranks", "train.global_batch = 8 or 16",
          "train.micro_batch = 3"});
  refuse(64, train(folder.path() / "run") + Arguments{"--train.micro_batch", "5"},
         {"is not a multiple of train.micro_batch = 5: set train.global_batch = 10 or 15"});
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(BadOutput, AFileInItsPlace) {
  const TempFolder folder;
  const fs::path file = folder.write("file", "keep me");
  for (const fs::path& output : {file, file / "run"}) {
    refuse(73, on_ranks(2, train(output)) + Arguments{"--train.micro_batch", "6"},
           {"cannot write to the output folder", output.string(), "train.output"});
  }
  EXPECT_EQ(read_file(file), "keep me");
}

}  // namespace
}  // namespace sherd::test
