#pragma once
// Short training runs of the program on the small model, and what they leave behind.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/ended.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {

namespace fs = std::filesystem;

inline const std::string kModel = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
inline const std::string kQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";

/// Inputs that users of such programs have met: a folder for each.
inline const std::string kCases = SHERD_TEST_SOURCE_DIR "/tests/data/cases/";

/// One prompt and its completion.
inline const std::string kGood = R"({"prompt": "Who is it?", "completion": "Lily"})";

/// Trains on one file. Given twice, a flag is refused: tests add only others.
inline Arguments train_on(const fs::path& data, const fs::path& output,
                          const std::string& steps = "2", const std::string& batch = "2") {
  return {"train",
          SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
          "--model.path",
          kModel,
          "--data.train",
          data.string(),
          "--train.output",
          output.string(),
          "--train.max_steps",
          steps,
          "--train.global_batch",
          batch};
}

/// `train` into `output`: 12 questions per step, so that 32 make three steps per epoch, the last of
/// them smaller.
inline Arguments train(const fs::path& output, const std::string& steps = "6") {
  return train_on(kQuestions, output, steps, "12") + Arguments{"--data.max_length", "128"};
}

/// On the CPU, with the same numbers on all processors: those fast at bfloat16 would choose it.
inline const Arguments kInFloat32 = {"--device.kind", "cpu", "--precision.param_dtype", "float32"};

/// Trains a model and data of kCases, whose tokens are not kept, on the CPU.
inline Arguments train_case(const fs::path& model, const fs::path& data, const fs::path& output) {
  return Arguments{"train",          "--model.path",  model.string(), "--data.train", data.string(),
                   "--train.output", output.string(), "--data.cache", "none"} +
         kInFloat32;
}

/// `train` in bf16, with three checkpoints.
inline Arguments in_bf16(const fs::path& output) {
  return train(output) +
         Arguments{"--precision.param_dtype", "bfloat16", "--checkpoint.every", "2 steps"};
}

/// Flags that offload the optimizer's state, or all parts, to a disk.
inline Arguments on_disk(const fs::path& folder) {
  return {"--memory.offload.optimizer", "disk:" + folder.string()};
}
inline Arguments all_on_disk(const fs::path& folder) {
  return on_disk(folder) + Arguments{"--memory.offload.gradients", "disk:" + folder.string(),
                                     "--memory.offload.parameters", "disk:" + folder.string()};
}

/// The verb on this many ranks under `sherd launch`.
inline Arguments on_ranks(int ranks, const Arguments& verb) {
  return Arguments{"launch", "-n", std::to_string(ranks)} + verb;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The objects of a log, one a step; those of other events are passed over, and must say of which
/// step they are.
inline std::vector<nlohmann::json> read_log(const fs::path& path) {
  std::vector<nlohmann::json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line);
    EXPECT_TRUE(record.contains("step")) << line;
    if (!record.contains("event")) {
      records.push_back(std::move(record));
    }
  }
  return records;
}

/// One number of each record; the records must be those of steps `first`, `first` + 1, …
inline std::vector<double> column(const fs::path& output, const char* key, int first = 1) {
  std::vector<double> numbers;
  int step = first;
  for (const auto& record : read_log(output / "log.jsonl")) {
    EXPECT_EQ(record.at("step"), step++) << output;
    numbers.push_back(record.at(key).get<double>());
  }
  return numbers;
}

/// A text whose lines were broken for a terminal, without these breaks.
inline std::string unwrapped(std::string text) {
  constexpr std::string_view kBreak = "\n  ";
  for (std::size_t at = text.find(kBreak); at != std::string::npos; at = text.find(kBreak, at)) {
    text.replace(at, kBreak.size(), " ");
  }
  return text;
}

/// How often a text has a part.
inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Runs the program to its end and expects this exit code.
inline Ended expect_code(int code, const Arguments& arguments, const Arguments& variables = {}) {
  Ended ended = run_program(arguments, variables);
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.code, code) << ended.out << ended.err;
  return ended;
}

/// The bytes of the weights that `sherd export` makes of a checkpoint or a run.
inline std::string exported_weights(const fs::path& checkpoint) {
  const TempFolder folder;
  const fs::path out = folder.path() / "hf";
  expect_code(0, {"export", "--checkpoint", checkpoint.string(), "--out", out.string()});
  return read_file(out / "model.safetensors");
}

/// Two runs have learned the same, bit for bit.
inline void expect_same(const fs::path& run, const fs::path& plain) {
  EXPECT_EQ(column(run, "loss"), column(plain, "loss"));
  EXPECT_EQ(column(run, "grad_norm"), column(plain, "grad_norm"));
  EXPECT_EQ(exported_weights(run), exported_weights(plain));
}

/// A copy of the model folder, to be broken.
inline fs::path copy_of_model(const fs::path& to) {
  fs::copy(kModel, to);
  return to;
}

/// A folder of a BLOOM without weights whose parameters, 25 million, are more than its activations.
inline fs::path wide_bloom(const fs::path& folder) {
  fs::copy(SHERD_TEST_SOURCE_DIR "/recipes/models/wide-bloom", folder);
  return folder;
}

/// All files and folders below a folder, relative to it.
inline std::vector<std::string> listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.push_back(fs::relative(entry.path(), folder).string());
  }
  return names;
}

}  // namespace sherd::test
