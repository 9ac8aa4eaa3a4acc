#include "llm/config/fields.h"

#include <set>

#include "gtest/gtest.h"

namespace llm::config {
namespace {

TEST(Fields, AreFoundByOneNameEachAndDocumented) {
  RunConfig config;
  std::set<std::string> keys;
  for (const Field& field : fields_of(config)) {
    EXPECT_TRUE(keys.insert(field.key()).second) << field.key();
    EXPECT_FALSE(field.doc.empty()) << field.key();
    EXPECT_EQ(field.doc.find('\n'), std::string::npos) << field.key();
    EXPECT_EQ(std::holds_alternative<Choice>(field.slot), !field.choices.empty()) << field.key();
  }
}

TEST(Fields, ChoicesFollowTheOrderOfTheirEnum) {
  RunConfig config;
  for (const Field& field : fields_of(config)) {
    if (field.key() == "model.init") {
      std::get<Choice>(field.slot).set(1);
      EXPECT_EQ(config.model.init, Init::Random);
      EXPECT_EQ(field.choices[1], "random");
    }
    if (field.key() == "optim.schedule") {
      std::get<Choice>(field.slot).set(1);
      EXPECT_EQ(config.optim.schedule, Schedule::Cosine);
      EXPECT_EQ(field.choices[1], "cosine");
    }
    if (field.key() == "parallel.strategy") {
      std::get<Choice>(field.slot).set(1);
      EXPECT_EQ(config.parallel.strategy, Strategy::ShardGradOp);
      EXPECT_EQ(field.choices[1], "shard_grad_op");
    }
    if (field.key() == "precision.param_dtype") {
      std::get<Choice>(field.slot).set(1);
      EXPECT_EQ(config.precision.param_dtype, ParamDtype::BFloat16);
      EXPECT_EQ(field.choices[1], "bfloat16");
    }
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
