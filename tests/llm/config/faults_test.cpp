// Every fault of a configuration file, by its message.

#include <vector>

#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using Faults = ConfigFiles;
using ::testing::HasSubstr;

struct Row {
  std::string text;  // appended to kRequired, so that its first line is 4
  std::string message;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"[optim]\nlearnrate = 1",
       "run.toml:5: optim.learnrate: unknown key; known in [optim] are lr, betas, eps, "
       "weight_decay, schedule, warmup_steps, min_lr_ratio, clip_grad_norm"},
      {"[optim]\nweight_deacy = 1",
       "run.toml:5: optim.weight_deacy: unknown key; did you mean optim.weight_decay?"},
      {"[optim]\nglobal_batch = 1",
       "run.toml:5: optim.global_batch: unknown key; did you mean train.global_batch?"},
      {"[optmi]\nlr = 1.0", "run.toml:4: optmi: unknown section; did you mean [optim]?"},
      {"[lora]\nrank = 8", "run.toml:4: lora: unknown section; did you mean [log]?"},
      {"[telemetry]",
       "run.toml:4: telemetry: unknown section; known sections are model, data, train, "
       "optim, parallel, memory, precision, checkpoint, log, eval"},
      {"lr = 1", "run.toml:4: lr: not in a section; did you mean optim.lr?"},
      {"epoch = 1", "run.toml:4: epoch: not in a section; did you mean train.epochs?"},
      {"optim = { lr = 'ü', eps = 'é' }", "run.toml:4: optim.eps = 'é': must be a number above 0"},
      {"optim = 3", "run.toml:4: optim = 3: a section is written [name]"},
      {"[[optim]]\nlr = 1.0", "run.toml:4: optim = "},
      {"[optim.lr]\nx = 1", "optim.lr = "},
      {"train.epochs = 'three'",
       "run.toml:4: train.epochs = 'three': must be an integer from 1 to 1000000"},
      {"train.epochs = 1.0",
       "run.toml:4: train.epochs = 1.0: must be an integer from 1 to 1000000"},
      {"train.epochs = true", "run.toml:4: train.epochs = true: must be an integer"},
      {"train.epochs = 0", "run.toml:4: train.epochs = 0: must be an integer from 1 to 1000000"},
      {"train.seed = -1", "run.toml:4: train.seed = -1: must be an integer of at least 0"},
      {"train.epochs = 1979-05-27", "run.toml:4: train.epochs = 1979-05-27: must be an integer"},
      {"parallel.prefetch_depth = 9", "must be an integer from 0 to 8"},
      {"optim.lr = 0", "run.toml:4: optim.lr = 0: must be a number above 0"},
      {"optim.lr = nan", "run.toml:4: optim.lr = nan: must be a number above 0"},
      {"optim.lr = inf", "run.toml:4: optim.lr = inf: must be a number above 0"},
      {"optim.lr = '1e-5'", "run.toml:4: optim.lr = '1e-5': must be a number above 0"},
      {"optim.min_lr_ratio = 1.5", "must be a number from 0 to 1"},
      {"optim.betas = 0.9",
       "run.toml:4: optim.betas = 0.9: must be two numbers, each of at least 0 and below 1"},
      {"optim.betas = [0.9]", "optim.betas = [0.9]: must be two numbers"},
      {"optim.betas = [0.9, 0.95, 0.99]", "must be two numbers"},
      {"optim.betas = [0.9, 'x']", "must be two numbers"},
      {"optim.betas = [0.9, 1.0]", "must be two numbers, each of at least 0 and below 1"},
      {"optim.schedule = 'cosin'",
       "run.toml:4: optim.schedule = 'cosin': must be one of \"linear\", \"cosine\", "
       "\"constant\""},
      {"optim.schedule = 1", "must be one of"},
      {"precision.reduce_dtype = 'bfloat16'",
       "precision.reduce_dtype = 'bfloat16': must be \"float32\""},
      {"eval.generate = 1", "run.toml:4: eval.generate = 1: must be true or false"},
      {"eval.generate = 'yes'", "must be true or false"},
      {"log.jsonl = 3", "run.toml:4: log.jsonl = 3: must be a string"},
      {"data.eval = ['a', 'b']", "must be a string"},
      {"log.jsonl = 'a' 'b'", "run.toml:4:17: not valid TOML: "},
      {"data.eval = [é]", "run.toml:4:14: not valid TOML: "},
      {"é = 1", "run.toml:4:1: not valid TOML: "},
      {"data.eval =é'x'", "run.toml:4:12: not valid TOML: "},
      {"data.eval = \"\"\"\\\n§\"\"\"\nlog.jsonl = 1",
       "run.toml:6: log.jsonl = 1: must be a string"},
      {"[;optim]", "run.toml:4:2: not valid TOML: "},
      {"[optim\nlr = 1", "not valid TOML: "},
      {"optim.lr = 1e-5\noptim.lr = 1e-4", "run.toml:5:"},
      {"log.jsonl = '\xff\xfe'", "not valid TOML: "},
      {std::string("a\0b", 3), "not valid TOML: "},
      {"{\"optim\": 1}", "not valid TOML: "},
      {"train.micro_batch = 16",
       "run.toml:4: train.micro_batch = 16 is larger than train.global_batch = 8"},
  };
  return all;
}

TEST_F(Faults, OfAFileAreNamedWithTheirPlace) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.text);
    const std::string message = faults(write(kRequired + row.text));
    EXPECT_NE(message, "");
    EXPECT_THAT(message, HasSubstr(row.message));
  }
}

TEST_F(Faults, AreAllReportedInTheOrderOfTheFileThenOfTheFlags) {
  const auto file =
      write("[train]\noutput = 3\n[optim]\nwarmup = 1\nlr = -1.0\n[data]\nmax_length = 8\n");
  EXPECT_EQ(faults(file, {"--eval.batch", "0", "stray", "--log.jsnl", "x", "--model.path"}),
            "9 faults in the configuration:\n"
            "  run.toml:2: train.output = 3: must be a string\n"
            "  run.toml:4: optim.warmup: unknown key; did you mean optim.warmup_steps?\n"
            "  run.toml:5: optim.lr = -1.0: must be a number above 0\n"
            "  --eval.batch 0: must be an integer from 1 to 1000000\n"
            "  stray: not expected here: flags are --section.key value\n"
            "  --log.jsnl: unknown flag; did you mean --log.jsonl?\n"
            "  --model.path: needs a value: a string\n"
            "  data.train is missing: give train = \"…\" under [data], or --data.train …: training "
            "questions, a SQuAD v1.1 JSON file\n"
            "  data.max_answer_tokens = 32 leaves no room for the question in data.max_length = 8");
}

TEST_F(Faults, OfFilesThatCannotBeRead) {
  EXPECT_EQ(faults(folder() / "none.toml"), "none.toml: cannot be read: No such file or directory");
  EXPECT_EQ(faults(folder()), folder().string() + ": cannot be read: is a folder");
  EXPECT_EQ(faults("/dev/zero"), "/dev/zero: larger than 1 MiB: no configuration");
  EXPECT_THAT(faults(folder() / "none.toml", {"--optim.lr", "x"}),
              HasSubstr("  --optim.lr x: must be a number above 0"));
}

TEST_F(Faults, AMissingKeySaysHowToGiveIt) {
  EXPECT_THAT(faults(write("")),
              HasSubstr("model.path is missing: give path = \"…\" under [model], "
                        "or --model.path …: Hugging Face folder"));
  EXPECT_THAT(faults(write(""), {}), HasSubstr("3 faults"));
  EXPECT_THAT(faults(write(kRequired + "[model]\n")), HasSubstr("not valid TOML"));
  EXPECT_THAT(faults(std::nullopt, {"--model.path=", "--data.train=t", "--train.output=o"}),
              HasSubstr("--model.path: model.path is missing"));
}

TEST_F(Faults, LongValuesAreCut) {
  const std::string text =
      faults(write(kRequired + "train.seed = '" + std::string(5000, 'x') + "'"));
  EXPECT_THAT(text, HasSubstr("xxx…: must be an integer"));
  EXPECT_LT(text.size(), 200);
}

}  // namespace
}  // namespace llm::config::testing
