#include "llm/config/fields.h"

#include <set>

#include "gtest/gtest.h"

namespace llm::config {
namespace {

TEST(Fields, AreFoundByOneNameEachAndDocumented) {
  RunConfig config = with_items();
  std::set<std::string> keys;
  for (const Leaf& leaf : leaves(config)) {
    EXPECT_TRUE(keys.insert(leaf.key).second) << leaf.key;
    EXPECT_FALSE(leaf.field.doc.empty()) << leaf.key;
    EXPECT_EQ(leaf.field.doc.find('\n'), std::string::npos) << leaf.key;
    EXPECT_EQ(find(config, leaf.key).key, leaf.key);
  }
}

TEST(Fields, HoldWhatTheyPrint) {
  RunConfig config = with_items();
  const RunConfig before = config;
  for (const Leaf& leaf : leaves(config)) {
    const std::string text = leaf.text();
    const bool quoted = text.starts_with('"');
    const bool pair = text.starts_with('[');
    const std::string flag = quoted || pair ? text.substr(1, text.size() - 2) : text;
    EXPECT_TRUE(leaf.field.value()->set(FlagText{flag})) << leaf.key << " " << flag;
    EXPECT_EQ(leaf.text(), text) << leaf.key;
  }
  EXPECT_EQ(config, before);
}

TEST(Fields, WordsNameTheirEnumerator) {
  RunConfig config;
  const auto set = [&](const char* key, const char* word) {
    return find(config, key).field->value()->set(std::string(word));
  };
  EXPECT_TRUE(set("model.init", "random"));
  EXPECT_EQ(config.model.init, Init::Random);
  EXPECT_TRUE(set("schedule.kind", "cosine"));
  EXPECT_EQ(config.schedule.kind, Schedule::Cosine);
  EXPECT_TRUE(set("parallel.strategy", "shard_grad_op"));
  EXPECT_EQ(config.parallel.strategy, Strategy::ShardGradOp);
  EXPECT_TRUE(set("precision.param_dtype", "bfloat16"));
  EXPECT_EQ(config.precision.param_dtype, ParamDtype::BFloat16);
}

// A string of TOML is always a pattern; a flag is one if it cannot be a list of names.
TEST(Fields, ModulesAreNamesOrAPattern) {
  ModuleChoice slot;
  const Value value = names_or_pattern(slot);
  EXPECT_EQ(value.text(), "[]");
  EXPECT_TRUE(value.set(std::vector<std::string>{"q_proj", "layers.0.v_proj"}));
  EXPECT_EQ(value.text(), R"(["q_proj", "layers.0.v_proj"])");
  EXPECT_TRUE(value.set(std::string("q_proj")));
  EXPECT_EQ(slot, ModuleChoice{.pattern = "q_proj"});
  EXPECT_TRUE(value.set(FlagText{"q_proj, layers.0.v_proj"}));
  EXPECT_EQ(slot, (ModuleChoice{.names = {"q_proj", "layers.0.v_proj"}}));
  EXPECT_TRUE(value.set(FlagText{"all-linear"}));
  EXPECT_EQ(slot, ModuleChoice{.pattern = "all-linear"});
  EXPECT_TRUE(value.set(FlagText{R"(.*\.(?!mlp).*_proj)"}));
  EXPECT_EQ(value.text(), R"(".*\\.(?!mlp).*_proj")");
  EXPECT_FALSE(value.set(std::int64_t{1}));
}

// An int cannot be given what it would cut off, whatever its range says.
TEST(Fields, OfAnIntAreBoundedByIt) {
  int slot = 7;
  const Value value = integer(slot, {.least = 0});
  EXPECT_FALSE(value.set(std::int64_t{1} << 32));
  EXPECT_FALSE(value.set(FlagText{"2147483648"}));
  EXPECT_EQ(slot, 7);
  EXPECT_TRUE(value.set(FlagText{"2147483647"}));
  EXPECT_EQ(slot, 2147483647);
}

// Every old name is a key that is none any more, and leads to one that is.
TEST(Fields, OldNamesLeadToNewOnes) {
  RunConfig config = with_items();
  for (const Renamed& key : all_renamed()) {
    EXPECT_FALSE(find(config, key.old.key).field) << key.old.key;
    EXPECT_TRUE(find(config, key.now.key).field) << key.now.key;
    EXPECT_FALSE(renamed(key.old.key).empty()) << key.old.key;
  }
}

TEST(Range, HoldsWhatItSays) {
  const Range above{.least = 0, .above_least = true};
  EXPECT_FALSE(above.holds(0));
  EXPECT_TRUE(above.holds(1e-300));
  EXPECT_EQ(above.text(), " above 0");
  const Range share{.least = 0, .most = 1, .below_most = true};
  EXPECT_TRUE(share.holds(0));
  EXPECT_FALSE(share.holds(1));
  EXPECT_EQ(share.text(), " of at least 0 and below 1");
  const Range few{.least = 0, .most = 8};
  EXPECT_TRUE(few.holds(8));
  EXPECT_FALSE(few.holds(8.1));
  EXPECT_FALSE(few.holds(-0.1));
  EXPECT_EQ(few.text(), " from 0 to 8");
}

}  // namespace
}  // namespace llm::config
