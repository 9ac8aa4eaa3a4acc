#include "llm/config/foreign_keys.h"

#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "llm/config/fields.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using ForeignKeys = ConfigFiles;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ForeignKeysTable, NamesKeysThatThereAre) {
  RunConfig config = with_items();
  std::set<std::string> names;
  for (const ForeignKey& foreign : foreign_keys()) {
    SCOPED_TRACE(foreign.name);
    EXPECT_TRUE(names.insert(foreign.name).second) << "listed twice";
    EXPECT_EQ(foreign_key(foreign.name), &foreign) << "not spelled as it is looked up";
    EXPECT_FALSE(find(config, foreign.name).field) << "a key of ours";
    EXPECT_FALSE(foreign.keys.empty() && foreign.remark.empty());
    for (const std::string& key : foreign.keys) {
      EXPECT_TRUE(find(config, key).field && !find(config, key).field->is_not_yet()) << key;
    }
  }
}

TEST(ForeignKeysTable, TakesDashesAndCapitals) {
  ASSERT_NE(foreign_key("train.Max-Seq-Length"), nullptr);
  EXPECT_THAT(foreign_key("train.Max-Seq-Length")->keys, ElementsAre("data.max_length"));
  EXPECT_EQ(foreign_key("lr"), nullptr);
  EXPECT_EQ(foreign_key(""), nullptr);
}

TEST_F(ForeignKeys, AreFaultsThatNameOurs) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"train.learning_rate = 1e-5",
       "run.toml:4: train.learning_rate: unknown key; here it is optim.lr"},
      {"[optim]\nwd = 0.1", "run.toml:5: optim.wd: unknown key; here it is optim.weight_decay"},
      {"learning_rate = 1e-5", "run.toml:4: learning_rate: not in a section; here it is optim.lr"},
      {"train.batch_size = 4",
       "unknown key; here it is train.global_batch or train.micro_batch: train.global_batch "
       "counts"},
      {"[eval]\nbatch_size = 4", "eval.batch_size: unknown key; here it is eval.batch"},
      {"train.bf16 = true",
       R"(here it is precision.param_dtype: "bfloat16", "float16" or "float32")"},
      {"[fsdp]\nsharding_strategy = 'FULL_SHARD'",
       "run.toml:4: fsdp: unknown section; here it is parallel.strategy"},
      {"[activation_checkpoint]\nmode = 'full'", "here it is memory.activation_checkpointing"},
      {"train.lora_r = 8", "unknown key; here it is adapter.rank"},
      {"[adapter]\ntarget_modules = ['q_proj']",
       "here it is adapter.targets: a list of names, or \"all-linear\""},
      {"train.load_in_8bit = true", "unknown key; here it is model.quantize: \"q8_0\""},
      {"train.load_in_4bit = true", "unknown key: bases in 4 bits are not supported yet"},
  };
  for (const auto& [text, message] : rows) {
    EXPECT_THAT(faults(write(kRequired + text)), HasSubstr(message)) << text;
  }
}

TEST_F(ForeignKeys, AreFaultsOfFlagsToo) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"--learning_rate=1e-5", "--learning_rate: unknown flag; here it is --optim.lr"},
      {"--per-device-train-batch-size=4", "; here it is --train.micro_batch"},
      {"--train.gradient_accumulation_steps=4", "; here it is --train.global_batch: micro-batches"},
      {"--num_train_epochs=3", "; here it is --train.epochs"},
      {"--max_grad_norm=1", "; here it is --optim.clip_grad_norm"},
      {"--warmup_steps=10", "; here it is --schedule.warmup: steps such as \"100 steps\""},
      {"--max_seq_length=512", "; here it is --data.max_length"},
      {"--save_steps=100", "; here it is --checkpoint.every"},
      {"--logging_steps=1", "; here it is --log.every_steps"},
      {"--fsdp=full_shard", "; here it is --parallel.strategy"},
      {"--optimizer=adamw_torch", "; here it is --optim.kind"},
  };
  for (const auto& [flag, message] : rows) {
    EXPECT_THAT(faults(write(kRequired), {flag}), HasSubstr(message)) << flag;
  }
}

TEST_F(ForeignKeys, AreNoneOfOurOwnMistakes) {
  EXPECT_THAT(faults(write(kRequired), {"--lr", "1e-4"}),
              HasSubstr("--lr: unknown flag; did you mean --optim.lr?"));
  EXPECT_THAT(faults(write(kRequired), {"--train.sede=1"}), Not(HasSubstr("here it is")));
}

TEST_F(ForeignKeys, SpellingsOfAValueAreOneValue) {
  const RunConfig usual = load(
      write(kRequired + "precision.param_dtype = 'bfloat16'\nparallel.strategy = 'full_shard'\n"
                        "precision.moments = 'bfloat16'\nprecision.reduce_dtype = 'float32'\n"),
      {});
  for (const auto& [dtype, strategy] :
       {std::pair("bf16", "FULL_SHARD"), std::pair("BF16", "full-shard"),
        std::pair("BFloat16", "Full_Shard")}) {
    const RunConfig other =
        load(write(kRequired + "precision.param_dtype = '" + dtype + "'\nparallel.strategy = '" +
                   strategy + "'\nprecision.moments = 'bf16'\nprecision.reduce_dtype = 'fp32'\n"),
             {});
    EXPECT_EQ(to_toml(other), to_toml(usual)) << dtype;
    EXPECT_THAT(deciding_differences(usual, other), IsEmpty());
    const std::vector<std::string> flags = {std::string("--precision.param_dtype=") + dtype,
                                            "--precision.moments=bf16"};
    EXPECT_EQ(load(write(kRequired), flags).precision.param_dtype, ParamDtype::BFloat16);
  }
  EXPECT_THAT(faults(write(kRequired), {"--precision.param_dtype=bf1"}),
              HasSubstr("must be one of \"auto\", \"float32\", \"bfloat16\", \"float16\""));
}

TEST_F(ForeignKeys, ALearningRateWithoutItsMinusIsNoted) {
  const auto notes_of = [&](const std::string& lr) {
    std::vector<std::string> notes;
    const std::vector<std::string> flags = {"--optim.lr", lr};
    static_cast<void>(
        load(write(kRequired), flags, [&](const std::string& line) { notes.push_back(line); }));
    return notes;
  };
  EXPECT_THAT(notes_of("1e4"), ElementsAre("warning: optim.lr = 10000 is unusually large for "
                                           "AdamW; usual are 1e-6 to 1e-2"));
  EXPECT_THAT(notes_of("0.09"), IsEmpty());
}

}  // namespace
}  // namespace llm::config::testing
