#include "llm/runs/evaluation_set.h"

#include <gtest/gtest.h>

namespace llm::runs {
namespace {

using config::DataFormat;

TEST(EvaluationSet, IsAnotherWithWhateverDecidesItsQuestions) {
  const config::DataSet set{.path = "dev.json"};
  const EvaluationSet first = evaluation_set(0, set, "d1", DataFormat::Squad);
  EXPECT_EQ(first.digest.size(), 16U);
  config::DataSet elsewhere = set;
  elsewhere.path = "other/dev.json";  // the same content
  EXPECT_EQ(evaluation_set(0, elsewhere, "d1", DataFormat::Squad), first);
  EXPECT_NE(evaluation_set(1, set, "d1", DataFormat::Squad), first);
  EXPECT_NE(evaluation_set(0, set, "d2", DataFormat::Squad), first);
  EXPECT_NE(evaluation_set(0, set, "d1", DataFormat::Jsonl), first);
  config::DataSet limited = set;
  limited.limit = 8;
  EXPECT_NE(evaluation_set(0, limited, "d1", DataFormat::Squad), first);
  config::DataSet ordered = limited;
  ordered.limit_order = config::LimitOrder::File;
  EXPECT_NE(evaluation_set(0, ordered, "d1", DataFormat::Squad),
            evaluation_set(0, limited, "d1", DataFormat::Squad));
  config::DataSet columns = set;
  columns.columns.prompt = "question";
  EXPECT_NE(evaluation_set(0, columns, "d1", DataFormat::Squad), first);
}

}  // namespace
}  // namespace llm::runs
