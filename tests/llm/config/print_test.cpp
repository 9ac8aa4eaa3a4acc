#include <fstream>
#include <iterator>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llm/config/fields.h"

namespace llm::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A key is a promise: it stays once it is there. Add new ones here and in CHANGELOG.md.
TEST(Print, TheListOfFlags) {
  std::istringstream help(help_text());
  std::vector<std::string> flags;
  for (std::string line; std::getline(help, line);) {
    if (line.starts_with("  --")) {  // "  --key  (default)"
      const std::size_t space = line.find("  (");
      flags.push_back(line.substr(4, space - 4) + " " +
                      line.substr(space + 3, line.size() - space - 4));
    }
  }
  EXPECT_THAT(
      flags,
      ElementsAre(
          "model.path required", "model.init \"weights\"", "data.train required", "data.eval none",
          "data.max_length 0", "data.max_answer_tokens 32", "data.train_limit 0",
          "data.eval_limit 0", "data.cache none", "train.output required", "train.epochs 1",
          "train.max_steps 0", "train.global_batch 8", "train.micro_batch 1", "train.seed 0",
          "train.threads 0", "optim.lr 2e-05", "optim.betas [0.9, 0.999]", "optim.eps 1e-08",
          "optim.weight_decay 0.0", "optim.schedule \"linear\"", "optim.warmup_steps 0",
          "optim.min_lr_ratio 0.0", "optim.clip_grad_norm 1.0", "parallel.strategy \"full_shard\"",
          "parallel.shard_size 0", "parallel.reshard_after_forward_size 0",
          "parallel.prefetch_depth 1", "memory.activation_checkpointing false",
          "memory.moments_dtype \"float32\"", "memory.loss_chunk_tokens 512",
          "precision.param_dtype \"float32\"", "precision.reduce_dtype \"float32\"",
          "checkpoint.every_steps 0", "checkpoint.keep 2", "checkpoint.resume \"auto\"",
          "checkpoint.at_end true", "log.every_steps 1", "log.jsonl none", "eval.every_steps 0",
          "eval.at_end true", "eval.generate false", "eval.batch 8"));
}

TEST(Print, HelpTellsMeaningKindAndUnit) {
  EXPECT_THAT(help_text(), HasSubstr("  --data.max_answer_tokens  (32)\n      room kept for the "
                                     "answer and its end token, and the most that is generated: an "
                                     "integer of at least 1, in tokens\n"));
}

TEST(Print, TomlHasEveryKeyUnderItsSection) {
  const std::string text = to_toml(RunConfig{});
  EXPECT_THAT(text, HasSubstr("[model]\npath = \"\"\ninit = \"weights\"\n\n[data]\n"));
  EXPECT_THAT(text, HasSubstr("\n[optim]\nlr = 2e-05\nbetas = [0.9, 0.999]\n"));
  EXPECT_THAT(text,
              HasSubstr("\n[eval]\nevery_steps = 0\nat_end = true\ngenerate = false\nbatch = 8\n"));
}

TEST(Print, TheCommittedReferencePageIsTheGeneratedOne) {
  std::ifstream file(SHERD_TEST_SOURCE_DIR "/docs/guide/configuration.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(page, reference_markdown())
      << "write it anew: cmake --build build/dev --target config_reference, then "
         "build/dev/bin/config_reference > docs/guide/configuration.md";
}

TEST(Print, TheReferencePageNamesEveryKey) {
  RunConfig config;
  const std::string page = reference_markdown();
  for (const Field& field : fields_of(config)) {
    EXPECT_THAT(page, HasSubstr("| `" + field.name + "` | " + field.expectation()));
  }
}

}  // namespace
}  // namespace llm::config
