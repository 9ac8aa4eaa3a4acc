// What a checkpoint remembers, and which changes make another run.

#include "llm/setup/run_note.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"

namespace llm::setup {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

const inputs::DataIdentity kData = {"train.json", 32, std::string(64, 'a'), std::string(64, 'b')};

RunNote note_of(config::RunConfig config) {
  config.model.path = config.model.path.empty() ? "models/small" : config.model.path;
  RunNote note = note_of_run(config, kData, 40);
  note.step = 7;
  return note;
}

TEST(RunNote, SurvivesItsText) {
  config::RunConfig config;
  config.model.path = "small \"one\"";
  RunNote note = note_of(config);
  note.origin = "/runs/first";
  note.isa = "avx2";
  note.model_values = {{"config.json: rope_theta", "10000"}, {"the end token", "\"</s>\" (id 2)"}};
  note.overwritten_by = "Slurm job 7";
  note.skipped_steps = 3;
  note.chat_template = "{{ messages }}\n";
  note.base = {
      std::string(64, 'c'), {{"model.safetensors", 12, 1'700'000'000'123'456'789}}, "/base"};
  note.reference = {std::string(64, 'd'), std::string(64, 'e')};
  const RunNote read = note_from_text(to_text(note), "folder");
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.total_steps, 40);
  EXPECT_EQ(read.data.path, "train.json");
  EXPECT_EQ(read.data.samples, 32);
  EXPECT_EQ(read.data.sha256, kData.sha256);
  EXPECT_EQ(read.data.tokenizer_sha256, kData.tokenizer_sha256);
  EXPECT_EQ(read.model, note.model);
  EXPECT_EQ(read.config, note.config);
  EXPECT_EQ(read.origin, "/runs/first");
  EXPECT_EQ(read.isa, "avx2");
  EXPECT_EQ(read.model_values, note.model_values);
  EXPECT_EQ(read.overwritten_by, "Slurm job 7");
  EXPECT_EQ(read.skipped_steps, 3);
  EXPECT_EQ(read.chat_template, note.chat_template);
  EXPECT_EQ(read.base, note.base);
  EXPECT_EQ(read.reference, note.reference);
}

TEST(RunNote, OfAnotherBaseIsAnotherRun) {
  RunNote then = note_of({}), now = then;
  then.base.sha256 = std::string(64, 'c');
  check_same_run(then, now, "runs/a");  // one of the two is not known
  now.base.sha256 = then.base.sha256;
  now.base.files = {{"other-name.safetensors", 1, 2}};
  now.model = "/elsewhere";
  check_same_run(then, now, "runs/a");
  now.base.sha256 = std::string(64, 'd');
  expect_error([&] { check_same_run(then, now, "runs/a"); }, ExitCode::Usage,
               {"'runs/a' belongs to a run with another base", "the base '/elsewhere'",
                "was cccccccccccc… and is now dddddddddddd…", "give a folder that has them"});
}

std::string numbers(const RunNote& then, const RunNote& now) {
  return changes_line(then.step, changed_numbers(then, now, "runs/a"));
}

// As the first version wrote it: no digests, no settings but the text of the configuration.
RunNote note_of_first_version(const config::RunConfig& config) {
  const nlohmann::json text = {{"step", 7},
                               {"total_steps", 40},
                               {"samples", 32},
                               {"model", "/models/small"},
                               {"config", config::to_toml(config)}};
  return note_from_text(text.dump(), "runs/old");
}

TEST(SameRun, OfTheFirstVersionIsKnownByItsCount) {
  config::RunConfig config;
  const RunNote old = note_of_first_version(config);
  EXPECT_NO_THROW(check_same_run(old, note_of(config), "runs/old"));
  RunNote fewer = note_of(config);
  fewer.data.samples = 31;
  expect_error([&] { check_same_run(old, fewer, "runs/old"); }, ExitCode::Usage,
               {"number of training samples was 32 and is now 31"});
  config.optim.lr = 0.5;
  EXPECT_NO_THROW(check_same_run(old, note_of(config), "runs/old"));
  EXPECT_EQ(numbers(old, note_of(config)), "changed since step 7: optim.lr 2e-05 -> 0.5");
}

TEST(SameRun, TakesASettingThatItDoesNotKnowAsWhatItDid) {
  config::RunConfig config;
  RunNote old = note_of(config);
  old.config = "[optim]\nweight_decay = 0.1\n";
  config.optim.weight_decay = 0.1;
  config.precision.param_dtype = config::ParamDtype::Auto;
  config.optim.weight_decay_on_norms_and_biases = true;
  EXPECT_EQ(numbers(old, note_of(config)), "");
  config.optim.weight_decay_on_norms_and_biases = false;
  config.schedule.warmup = {3, 0};
  EXPECT_EQ(numbers(old, note_of(config)),
            "changed since step 7: optim.weight_decay_on_norms_and_biases true -> false, "
            "schedule.warmup 0.0 -> \"3 steps\"");
}

TEST(SameRun, OfALaterVersionIsNotGuessedAt) {
  RunNote later = note_of({});
  later.config += "\n[telepathy]\nrange = 3\n";
  expect_error([&] { check_same_run(later, note_of({}), "runs/a"); }, ExitCode::BadData,
               {"'runs/a'", "telepathy: unknown section"});
}

TEST(RunNote, KeepsTheScaleOfTheLoss) {
  RunNote note = note_of({});
  note.loss_scale = 32768;
  note.good_steps = 17;
  const RunNote read = note_from_text(to_text(note), "folder");
  EXPECT_EQ(read.loss_scale, 32768);
  EXPECT_EQ(read.good_steps, 17);
}

TEST(SameRun, IsNotThatOfAnEditedFileOrAnotherTokenizer) {
  RunNote now = note_of({});
  now.data.sha256 = std::string(64, 'c');
  expect_error([&] { check_same_run(note_of({}), now, "runs/a"); }, ExitCode::Usage,
               {"belongs to a run with other data",
                "the training data 'train.json' has different content: its SHA-256 was "
                "aaaaaaaaaaaa… and is now cccccccccccc…",
                "model.path", "train.output", "--resume never"});
  now = note_of({});
  now.data.tokenizer_sha256 = std::string(64, 'd');
  expect_error([&] { check_same_run(note_of({}), now, "runs/a"); }, ExitCode::Usage,
               {"tokenizer.json has different content"});
}

TEST(SameRun, IsNotThatOfAnotherChatTemplate) {
  RunNote then = note_of({});
  RunNote now = note_of({});
  EXPECT_NO_THROW(check_same_run(then, now, "runs/a"));
  now.chat_template = "{{ messages }}";
  EXPECT_NO_THROW(check_same_run(then, now, "runs/a"));  // an older checkpoint does not know it
  then.chat_template = "{{ messages[0] }}";
  expect_error([&] { check_same_run(then, now, "runs/a"); }, ExitCode::Usage,
               {"the chat template (data.chat_template) has different content"});
}

TEST(RunNote, OfAnotherProgramIsRefused) {
  for (const char* text : {"", "epoch 3", "{}", "[1]", R"({"step": "seven"})"}) {
    expect_error([&] { static_cast<void>(note_from_text(text, "runs/a")); }, ExitCode::BadData,
                 {"'runs/a'", "was not written by `sherd train`"});
  }
}

TEST(SameRun, MayLogSaveAndEvaluateInAnotherWay) {
  config::RunConfig config;
  config.data.train = {{.path = "train.json"}};
  const RunNote note = note_of(config);
  config.model.path = "elsewhere";
  config.data.train = {{.path = "moved.json"}};
  config.train.output = "other";
  config.train.micro_batch = 4;  // the cut changes no loss
  config.log.every_steps = 5;
  config.checkpoint.every = config::Every::steps(3);
  config.checkpoint.resume = "runs/a";
  config.eval.batch = 2;
  EXPECT_NO_THROW(check_same_run(note, note_of(config), "runs/a"));
  EXPECT_EQ(numbers(note, note_of(config)), "");
}

TEST(SameRun, MayBecomeLonger) {
  config::RunConfig config;
  const RunNote note = note_of(config);
  config.train.epochs = 2;
  RunNote now = note_of(config);
  now.total_steps = 80;
  EXPECT_NO_THROW(check_same_run(note, now, "runs/a"));
  EXPECT_EQ(numbers(note, now), "changed since step 7: train.epochs 1 -> 2");
  config.train.max_steps = 40;  // the same length, given in another way
  EXPECT_EQ(numbers(note, note_of(config)), "");
}

TEST(SameRun, IsNotThatOfAnotherModel) {
  RunNote then = note_of({}), now = note_of({});
  now.model_values = {{"config.json: rope_theta", "500000"}};
  EXPECT_NO_THROW(check_same_run(then, now, "runs/a"));  // of an older version: not known
  then.model_values = {{"config.json: rope_theta", "10000"}, {"config.json: rope factor", "8"}};
  expect_error([&] { check_same_run(then, now, "runs/a"); }, ExitCode::Usage,
               {"belongs to a run with another model:", "rope_theta was 10000 and is now 500000",
                "rope factor was 8 and is now absent", "export the checkpoint"});
}

TEST(SameRun, IsRefusedWithEverySettingThatIsFixed) {
  config::RunConfig config;
  const RunNote note = note_of(config);
  config.train.seed = 3;
  config.train.global_batch = 16;
  config.optim.lr = 0.5;
  config.optim.betas = {0.5, 0.6};
  config.precision.param_dtype = config::ParamDtype::BFloat16;
  RunNote now = note_of(config);
  now.data.samples = 31;
  now.total_steps = 50;
  expect_error(
      [&] { check_same_run(note, now, "runs/a"); }, ExitCode::Usage,
      {"'runs/a' belongs to a run with other settings", "train.seed was 0 and is now 3",
       "train.global_batch was 8 and is now 16", "number of training samples was 32 and is now 31",
       "--resume never", "What may change on resume"});
  EXPECT_EQ(numbers(note, now),
            "changed since step 7: optim.lr 2e-05 -> 0.5, optim.betas [0.9, 0.999] -> [0.5, 0.6], "
            "precision.param_dtype \"auto\" -> \"bfloat16\"");
}

TEST(RunNote, SaysThatAnotherPathOfTheProcessorWillGiveOtherBits) {
  RunNote then = note_of({}), now = note_of({});
  EXPECT_EQ(other_isa(then, now), "");  // of an older version: not known
  then.isa = now.isa = "avx2";
  EXPECT_EQ(other_isa(then, now), "");
  now.isa = "amx";
  EXPECT_EQ(other_isa(then, now),
            "the checkpoint was computed with the CPU path \"avx2\", and this run uses \"amx\": "
            "results will differ in the last bits (SHERD_CPU_ISA selects a path)");
}

}  // namespace
}  // namespace llm::setup
