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
       "run.toml:5: optim.learnrate: unknown key; known in [optim] are kind, lr, betas, "
       "eps, weight_decay, weight_decay_on_norms_and_biases, clip_grad_norm"},
      {"[optim]\nweight_deacy = 1",
       "run.toml:5: optim.weight_deacy: unknown key; did you mean optim.weight_decay?"},
      {"[optim]\nglobal_batch = 1",
       "run.toml:5: optim.global_batch: unknown key; did you mean train.global_batch?"},
      {"[optmi]\nlr = 1.0", "run.toml:4: optmi: unknown section; did you mean [optim]?"},
      {"[lora]\nrank = 8", "run.toml:4: lora: unknown section; here it is adapter.kind: \"lora\""},
      {"[adapter]\nkind = 'dora'",
       "run.toml:5: adapter.kind = 'dora': not supported yet; must be one of \"none\", \"lora\""},
      {"[adapter]\nrank = 0", "run.toml:5: adapter.rank = 0: must be an integer from 1 to 65536"},
      {"[adapter]\ndropout = 1.0",
       "adapter.dropout = 1.0: must be a number of at least 0 and below 1"},
      {"[adapter]\ntargets = [1]",
       "must be a list of names such as [\"q_proj\", \"v_proj\"], or a "
       "pattern as one string"},
      {"[preference]\nlabel_smoothing = 0.5",
       "preference.label_smoothing = 0.5: must be a number of at least 0 and below 0.5"},
      {"[adapter]\nlayers = [0.5]", "must be a list of integers from 0 to 1000000 such as [0, 1]"},
      {"data.packing = true", "run.toml:4: data.packing = true: must be one of"},
      {"precision.param_dtype = 'fp8'",
       "run.toml:4: precision.param_dtype = 'fp8': not supported yet; must be one of \"auto\", "},
      {"model.quantize = 'nf4'",
       "run.toml:4: model.quantize = 'nf4': not supported yet; must be one of \"none\", \"q8_0\""},
      {"precision.moments = 'int8'",
       "run.toml:4: precision.moments = 'int8': not supported yet; must be one of \"float32\", "},
      {"data.workers = 2",
       "run.toml:4: data.workers: not supported yet: threads that prepare data"},
      {"model.ignore_fields = 'a'", "must be a list of strings such as [\"a\", \"b\"]"},
      {"model.ignore_fields = ['a', 1]", "must be a list of strings"},
      {"model.ignore_fields = [1.5]", "must be a list of strings"},
      {"[[optim.group]]\nmatch = 'x'", "optim.group: not supported yet: groups of parameters"},
      {"device.kind = 'gpu'",
       "run.toml:4: device.kind = 'gpu': must be one of \"auto\", \"cpu\", \"cuda\""},
      {"[[log.sink]]\nkind = 'csv'",
       "run.toml:5: log.sink[0].kind = 'csv': not supported yet; must be one of \"jsonl\", "
       "\"tensorboard\", \"wandb\", \"mlflow\""},
      {"[[log.sink]]\nkind = 'tensorbord'",
       "run.toml:5: log.sink[0].kind = 'tensorbord': must be one of"},
      {"[[log.sink]]\nkind = 'wandb'\nsync = 'yes'", "must be true or false"},
      {"log.tags = 'a'", "must be a list of strings such as"},
      {"log.trace_steps = '0-3'", "must be \"never\", or steps from 1 on such as"},
      {"log.trace_steps = '12-10'", "must be \"never\", or steps from 1 on such as"},
      {"log.name = 3", "run.toml:4: log.name = 3: must be a string"},
      {"log.project = true", "run.toml:4: log.project = true: must be a string"},
      {"[[data.eval]]\npath = 'e'\nformat = 'arrow'",
       "run.toml:6: data.eval[0].format = 'arrow': must be one of \"auto\", \"squad\", "
       "\"jsonl\", \"json\", \"parquet\", \"csv\", \"chat\", \"alpaca\", \"sharegpt\", "
       "\"prompt_completion\", \"text\""},
      {"[[data.eval]]\npath = 'e'\nlimti = 3",
       "run.toml:6: data.eval[0].limti: unknown key; did you mean data.eval[0].limit?"},
      {"[[data.eval]]\npath = 'e'\n[[data.eval]]\nqqqqqq = 3",
       "run.toml:7: data.eval[1].qqqqqq: unknown key; known in [[data.eval]] are path, format, "
       "limit, limit_order"},
      {"[[data.eval]]\npath = 'e'\ncolumns = 'q'",
       "run.toml:6: data.eval[0].columns = 'q': must be a table: columns = { prompt = …, "
       "completion = …, messages = …, text = …, chosen = …, rejected = … }"},
      {"data.on_bad_sample = 'drop'",
       "run.toml:4: data.on_bad_sample = 'drop': must be one of \"error\", \"skip\""},
      {"[[data.eval]]\npath = 'e'\ncolumns = { prompt = 'q', completion = 'q' }",
       "run.toml:6: data.eval[0].columns.prompt and data.eval[0].columns.completion are both "
       "\"q\": a record needs two columns"},
      {"data.max_bad_samples = -1",
       "run.toml:4: data.max_bad_samples = -1: must be an integer of at least 0"},
      {"[[data.eval]]\npath = 'e'\ncolumns = { question = 'q' }",
       "run.toml:6: data.eval[0].columns.question: unknown key"},
      {"[data.eval]\npath = 'e'",
       "run.toml:4: data.eval = [data.eval]: must be a string, strings, or tables [[data.eval]]"},
      {"data.eval = 3", "run.toml:4: data.eval = 3: must be a string, strings, or tables"},
      {"log.sink = 'l'", "run.toml:4: log.sink = 'l': must be tables [[log.sink]]"},
      {"data.eval = ['e', 3]", "must be a string, strings, or tables [[data.eval]]"},
      {"[telemetry]",
       "run.toml:4: telemetry: unknown section; known sections are model, adapter, data, train, "
       "preference, "
       "device, optim, schedule, parallel, precision, memory, checkpoint, eval, log"},
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
      {"schedule.min_lr_ratio = 1.5", "must be a number from 0 to 1"},
      {"schedule.warmup = 5",
       "run.toml:4: schedule.warmup = 5: must be steps such as \"100 steps\", or a share of the "
       "run "
       "from 0 to 1"},
      {"schedule.warmup = '5'", "must be steps such as"},
      {"schedule.warmup = '-1 steps'", "must be steps such as"},
      {"checkpoint.every = 0",
       "run.toml:4: checkpoint.every = 0: must be \"never\", \"epoch\", or steps or time such as "
       "\"500 steps\", \"10 min\""},
      {"checkpoint.every = '0 steps'", "must be \"never\", \"epoch\", or steps or time"},
      {"eval.every = '10 minutes'", "must be \"never\", \"epoch\", or steps or time"},
      {"parallel.timeout = '10'",
       "run.toml:4: parallel.timeout = '10': must be \"auto\" or a time of at least 1 s such as "
       "\"90 s\", \"10 "
       "min\", \"2 h\""},
      {"parallel.timeout = '999 ms'", "must be \"auto\" or a time of at least 1 s"},
      {"parallel.timeout = '1001 h'", "must be \"auto\" or a time of at least 1 s"},
      {"parallel.shard_size = 4294967297",
       "run.toml:4: parallel.shard_size = 4294967297: must be \"host\" or an integer from 1 to "
       "1000000"},
      {"parallel.reshard_after_forward_size = 2147483648", "must be \"strategy\" or an integer"},
      {"checkpoint.keep = 4294967298", "must be an integer from 1 to 1000000"},
      {"optim.clip_grad_norm = -1", "must be \"none\" or a number above 0"},
      {"data.max_length = 'long'", "must be \"model\" or an integer of at least 1"},
      {"eval.at_start = 3", "eval.at_start = 3: must be true or false"},
      {"eval.best_by = 'loss2'",
       "eval.best_by = 'loss2': must be one of \"auto\", \"loss\", \"em\", \"f1\""},
      {"eval.min_delta = -1", "eval.min_delta = -1: must be a number of at least 0"},
      {"eval.predictions = 'yes'", "eval.predictions = 'yes': must be true or false"},
      {"eval.patience = 0", "eval.patience = 0: must be \"none\" or an integer from 1 to 1000000"},
      {"checkpoint.best = 'x'", "checkpoint.best = 'x': must be true or false"},
      {"checkpoint.export = 'x'",
       "checkpoint.export = 'x': must be one of \"none\", \"end\", \"best\""},
      {"device.threads = 1024\n[optim]\nlr = 'x'", "must be a number above 0"},
      {"optim.betas = 0.9",
       "run.toml:4: optim.betas = 0.9: must be two numbers, each of at least 0 and below 1"},
      {"optim.betas = [0.9]", "optim.betas = [0.9]: must be two numbers"},
      {"optim.betas = [0.9, 0.95, 0.99]", "must be two numbers"},
      {"optim.betas = [0.9, 'x']", "must be two numbers"},
      {"optim.betas = [0.9, 1.0]", "must be two numbers, each of at least 0 and below 1"},
      {"schedule.kind = 'cosin'",
       "run.toml:4: schedule.kind = 'cosin': must be one of \"linear\", \"cosine\", "
       "\"constant\""},
      {"schedule.kind = 1", "must be one of"},
      {"precision.reduce_dtype = 'float16'",
       "precision.reduce_dtype = 'float16': must be one of \"float32\", \"bfloat16\""},
      {"precision.moments = 'float16'",
       "precision.moments = 'float16': must be one of \"float32\", \"bfloat16\""},
      {"precision.master = 'split'\nprecision.param_dtype = 'float16'",
       "run.toml:4: precision.master = \"split\" is for weights in bfloat16, and "
       "precision.param_dtype is \"float16\""},
      {"eval.generate = 1", "run.toml:4: eval.generate = 1: must be true or false"},
      {"eval.generate = 'yes'", "must be true or false"},
      {"data.cache = 3", "run.toml:4: data.cache = 3: must be a string"},
      {"data.cache = [1, 2]", "must be a string"},
      {"data.cache = ['a', 'b']", "must be a string"},
      {"log.jsonl = 'a' 'b'", "run.toml:4:17: not valid TOML: "},
      {"data.eval = [é]", "run.toml:4:14: not valid TOML: "},
      {"é = 1", "run.toml:4:1: not valid TOML: "},
      {"data.eval =é'x'", "run.toml:4:12: not valid TOML: "},
      {"data.eval = \"\"\"\\\n§\"\"\"\ndata.cache = 1",
       "run.toml:6: data.cache = 1: must be a string"},
      {"[;optim]", "run.toml:4:2: not valid TOML: "},
      {"[optim\nlr = 1", "not valid TOML: "},
      {"optim.lr = 1e-5\noptim.lr = 1e-4", "run.toml:5:"},
      {"log.jsonl = '\xff\xfe'", "not valid TOML: "},
      {std::string("a\0b", 3), "not valid TOML: "},
      {"{\"optim\": 1}", "not valid TOML: "},
      {"train.micro_batch = 'many'",
       "run.toml:4: train.micro_batch = 'many': must be \"auto\" or an integer from 1 to 1000000"},
      {"train.micro_batch = 0", "must be \"auto\" or an integer from 1 to 1000000"},
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

TEST_F(Faults, DataInThePlaceOfARecipeIsTold) {
  EXPECT_THAT(faults(write("{\"messages\": []}\n"), {}),
              HasSubstr("It looks like JSON: give a recipe here, and data with --data.train"));
  EXPECT_THAT(faults(write("[;optim]"), {}), ::testing::Not(HasSubstr("looks like JSON")));
}

TEST_F(Faults, AreAllReportedInTheOrderOfTheFileThenOfTheFlags) {
  const auto file =
      write("[train]\noutput = 3\n[optim]\nwarmup = 1\nlr = -1.0\n[data]\nmax_length = 8\n");
  EXPECT_EQ(
      faults(file, {"--eval.batch", "0", "stray", "--data.cahe", "x", "--model.path"}),
      "9 faults in the configuration:\n"
      "  run.toml:2: train.output = 3: must be a string\n"
      "  run.toml:4: optim.warmup: unknown key; did you mean schedule.warmup?\n"
      "  run.toml:5: optim.lr = -1.0: must be a number above 0\n"
      "  --eval.batch 0: must be an integer from 1 to 1000000\n"
      "  stray: not expected here: flags are --section.key value\n"
      "  --data.cahe: unknown flag; did you mean --data.cache?\n"
      "  --model.path: needs a value: a string\n"
      "  data.train is missing: give train = \"…\" under [data], or --data.train …: "
      "Training data. `train = \"f.json\"` or the flag `--data.train f.json` is short for one "
      "file.\n"
      "  data.max_answer_tokens = 32 leaves no room for the question in data.max_length = 8");
}

TEST_F(Faults, OfFilesThatCannotBeRead) {
  EXPECT_EQ(faults(folder() / "none.toml"),
            "none.toml: cannot be read: No such file or directory. Give the path of a TOML file; "
            "recipes/ has some");
  EXPECT_EQ(faults(folder()),
            folder().string() +
                ": cannot be read: is a folder. Give the path of a TOML file; recipes/ has some");
  EXPECT_EQ(faults("/dev/zero"), "/dev/zero: larger than 1 MiB: not a configuration file");
  EXPECT_THAT(faults(folder() / "none.toml", {"--optim.lr", "x"}),
              HasSubstr("  --optim.lr x: must be a number above 0"));
}

TEST_F(Faults, AMissingKeySaysHowToGiveIt) {
  EXPECT_THAT(faults(write("")),
              HasSubstr("model.path is missing: give path = \"…\" under [model], "
                        "or --model.path …: Hugging Face model folder"));
  EXPECT_THAT(faults(write(""), {}), HasSubstr("2 faults"));
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
