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
          "model.path required", "model.init \"weights\"", "model.ignore_fields []",
          "model.quantize \"none\"", "model.trainable []", "adapter.kind \"none\"",
          "adapter.path a fresh adapter, which changes nothing at first", "adapter.rank 8",
          "adapter.alpha 16.0", "adapter.dropout 0.0", "adapter.targets \"all-linear\"",
          "adapter.exclude []", "adapter.rank_stabilized false", "adapter.rank_pattern []",
          "adapter.alpha_pattern []", "adapter.layers []", "adapter.layers_pattern []",
          "adapter.modules_to_save []", "data.max_length \"model\"", "data.max_answer_tokens 32",
          "data.cache \"auto\"", "data.prepare_memory \"1 GiB\"", "data.packing \"none\"",
          "data.chat_template \"model\"", "data.template_arguments []", "data.date \"2026-01-01\"",
          "data.supervise \"all\"", "data.on_template_mismatch \"error\"",
          "data.special_tokens_in_text \"error\"", "data.separator \"auto\"",
          "data.on_bad_sample \"error\"", "data.max_bad_samples 100", "data.held_out \"none\"",
          "data.train[0].path required", "data.train[0].format \"auto\"",
          "data.train[0].limit \"all\"", "data.train[0].limit_order \"random\"",
          "data.train[0].columns.prompt \"prompt\"",
          "data.train[0].columns.completion \"completion\"",
          "data.train[0].columns.messages \"messages\"", "data.train[0].columns.text \"text\"",
          "data.train[0].columns.chosen \"chosen\"", "data.train[0].columns.rejected \"rejected\"",
          "data.train[0].weight 1.0", "data.eval[0].path required", "data.eval[0].format \"auto\"",
          "data.eval[0].limit \"all\"", "data.eval[0].limit_order \"random\"",
          "data.eval[0].columns.prompt \"prompt\"",
          "data.eval[0].columns.completion \"completion\"",
          "data.eval[0].columns.messages \"messages\"", "data.eval[0].columns.text \"text\"",
          "data.eval[0].columns.chosen \"chosen\"", "data.eval[0].columns.rejected \"rejected\"",
          "data.eval[0].held_out false",
          "train.output runs/ and the name of the file; required without one",
          "train.objective \"supervised\"", "train.epochs 1", "train.max_steps \"epochs\"",
          "train.global_batch 8", "train.micro_batch 1", "train.seed 0",
          "train.on_non_finite \"stop\"", "train.max_skipped 10", "train.deterministic false",
          "preference.loss \"sigmoid\"", "preference.beta 0.1", "preference.label_smoothing 0.0",
          "device.kind \"auto\"", "device.threads \"auto\"", "device.sync_debug_mode \"default\"",
          "device.cuda_graphs false", "device.attention \"auto\"", "optim.kind \"adamw\"",
          "optim.lr 2e-05", "optim.betas [0.9, 0.999]", "optim.eps 1e-08", "optim.weight_decay 0.0",
          "optim.weight_decay_on_norms_and_biases false", "optim.clip_grad_norm 1.0",
          "schedule.kind \"linear\"", "schedule.warmup 0.0", "schedule.min_lr_ratio 0.0",
          "parallel.strategy \"full_shard\"", "parallel.shard_size \"host\"",
          "parallel.reshard_after_forward_size \"strategy\"", "parallel.prefetch_depth 1",
          "parallel.timeout \"auto\"", "parallel.reduce_scatter \"rank_order\"",
          "precision.param_dtype \"auto\"", "precision.reduce_dtype \"float32\"",
          "precision.master \"float32\"", "precision.moments \"float32\"",
          "precision.scaler \"auto\"", "memory.activation_checkpointing false",
          "memory.loss_chunk_tokens \"auto\"", "memory.loss_chunk_bytes \"auto\"",
          "memory.offload.optimizer \"none\"", "memory.offload.gradients \"none\"",
          "memory.offload.parameters \"none\"", "memory.offload.activations \"none\"",
          "checkpoint.every \"10 min\"", "checkpoint.at_end true", "checkpoint.keep 2",
          "checkpoint.best false", "checkpoint.export \"none\"", "checkpoint.resume \"auto\"",
          "eval.at_start false", "eval.every \"epoch\"", "eval.at_end true", "eval.generate false",
          "eval.predictions true", "eval.batch 8", "eval.best_by \"auto\"",
          "eval.patience \"none\"", "eval.min_delta 0.0", "log.every_steps 1",
          "log.name WANDB_NAME for wandb, else the name of train.output's folder",
          "log.project WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME, else sherd", "log.tags []",
          "log.trace_steps \"never\"", "log.sink[0].kind \"jsonl\"",
          "log.sink[0].path log.jsonl, tensorboard or wandb in train.output; for wandb WANDB_DIR "
          "if set",
          "log.sink[0].sync false"));
}

TEST(Print, HelpTellsMeaningKindAndUnit) {
  EXPECT_THAT(
      help_text(),
      HasSubstr(
          "  --data.max_answer_tokens  (32)\n      tokens reserved for the answer with its end "
          "token; also the most that is generated: an integer of at least 1, in tokens\n"));
}

TEST(Print, TomlHasEveryKeyUnderItsSection) {
  const std::string text = to_toml(RunConfig{});
  EXPECT_THAT(
      text,
      HasSubstr(
          "[model]\npath = \"\"\ninit = \"weights\"\nignore_fields = []\nquantize = \"none\"\n"
          "trainable = []\n\n[adapter]\nkind = \"none\"\n"));
  EXPECT_THAT(text,
              HasSubstr("cache = \"auto\"\nprepare_memory = \"1 GiB\"\npacking = \"none\"\n"
                        "chat_template = \"model\"\ntemplate_arguments = []\ndate = "
                        "\"2026-01-01\"\nsupervise = \"all\"\non_template_mismatch = "
                        "\"error\"\nspecial_tokens_in_text = \"error\"\nseparator = \"auto\"\n"
                        "on_bad_sample = \"error\"\nmax_bad_samples = 100\nheld_out = "
                        "\"none\"\ntrain = []\neval = []\n\n[train]\n"));
  EXPECT_THAT(text, HasSubstr("\n[optim]\nkind = \"adamw\"\nlr = 2e-05\nbetas = [0.9, 0.999]\n"));
  EXPECT_THAT(text, HasSubstr("\n[log]\nevery_steps = 1\nname = \"\"\nproject = \"\"\ntags = []\n"
                              "trace_steps = \"never\"\n\n[[log.sink]]\nkind = \"jsonl\"\n"));
}

TEST(Print, TheCommittedReferencePageIsTheGeneratedOne) {
  std::ifstream file(SHERD_TEST_SOURCE_DIR "/docs/guide/configuration.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(page, reference_markdown())
      << "write it anew: cmake --build build/dev --target config_reference, then "
         "build/dev/bin/config_reference > docs/guide/configuration.md";
}

TEST(Print, TheReferencePageNamesEveryKey) {
  RunConfig config = with_items();
  const std::string page = reference_markdown();
  for (const Leaf& leaf : leaves(config)) {
    EXPECT_THAT(page, HasSubstr(leaf.field.name + "` | " + leaf.field.value()->kind));
  }
}

// Who updates finds the new name of each key there.
TEST(Print, TheChangelogHasEveryRenamedKey) {
  std::ifstream file(SHERD_TEST_SOURCE_DIR "/CHANGELOG.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const Renamed& key : all_renamed()) {
    EXPECT_TRUE(page.find("| `" + key.old.key + "` | `" + key.now.key) != std::string::npos ||
                page.find("` and `" + key.now.key + "`") != std::string::npos)
        << key.old.key << " -> " << key.now.key;
  }
}

}  // namespace
}  // namespace llm::config
