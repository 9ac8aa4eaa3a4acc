// Lists of tables, in files and as flags.

#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using Lists = ConfigFiles;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kWithoutData = "model.path = 'm'\ntrain.output = 'o'\n";

TEST_F(Lists, WhatIsHeldOutIsEvaluatedWhereNothingElseIs) {
  for (const std::string share : {"'1 %'", "'1%'", "0.01"}) {
    const RunConfig config =
        load(write(kWithoutData + "data.train = ['a', 'b']\ndata.held_out = " + share + "\n"), {});
    EXPECT_DOUBLE_EQ(config.data.held_out, 0.01);
    ASSERT_THAT(config.data.eval, SizeIs(2));
    EXPECT_EQ(config.data.eval[1].path, "b");
    EXPECT_TRUE(config.data.eval[1].held_out);
    EXPECT_EQ(load(write(to_toml(config)), {}), config);
  }
  const auto expect_fault = [&](const std::string& lines, const std::string& reason) {
    try {
      static_cast<void>(load(write(kWithoutData + "data.train = 'a'\n" + lines), {}));
      ADD_FAILURE() << lines;
    } catch (const sherd::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  };
  expect_fault("data.held_out = '60 %'\n", "a share up to one half");
  expect_fault("data.held_out = 'some %'\n", "a share up to one half");
  expect_fault("data.held_out = '1 %'\ndata.eval = 'b'\n", "give one of them held_out = true");
  expect_fault("[[data.eval]]\npath = 'b'\nheld_out = true\n", "nothing is kept from training");
}

TEST_F(Lists, MayBeAStringStringsOrTables) {
  const auto one = load(write(kWithoutData + "data.train = 'a'\n"), {}).data.train;
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(one[0].path, "a");
  const auto two = load(write(kWithoutData + "data.train = ['a', 'b']\n"), {}).data.train;
  ASSERT_THAT(two, SizeIs(2));
  EXPECT_EQ(two[1].path, "b");
  const auto tables = load(write(kWithoutData + R"(
[[data.train]]
path = "a"
[[data.train]]
path = "b"
limit = 5
limit_order = "file"
weight = 2
)"),
                           {})
                          .data.train;
  ASSERT_THAT(tables, SizeIs(2));
  EXPECT_EQ(tables[0], (DataSet{.path = "a"}));
  EXPECT_EQ(tables[1],
            (DataSet{.path = "b", .limit = 5, .limit_order = LimitOrder::File, .weight = 2}));
}

TEST_F(Lists, OfDataAreToTrainOnAndToEvaluate) {
  const auto eval = load(write(kRequired + "data.eval = ['a', 'b']\n"), {}).data.eval;
  EXPECT_EQ(eval, (std::vector<DataSet>{{.path = "a"}, {.path = "b"}}));
}

TEST_F(Lists, TakeFlags) {
  const auto file = write(kWithoutData + "data.train = ['a', 'b']\n");
  const std::vector<std::string> flags = {
      "--data.train[1].weight", "2", "--data.train[2].path=c", "--data.eval", "e",
      "--data.eval[0].limit=7"};
  const RunConfig config = load(file, flags);
  ASSERT_THAT(config.data.train, SizeIs(3));
  EXPECT_EQ(config.data.train[1], (DataSet{.path = "b", .weight = 2}));
  EXPECT_EQ(config.data.train[2].path, "c");
  EXPECT_EQ(config.data.eval.front(), (DataSet{.path = "e", .limit = 7}));
}

TEST_F(Lists, OfOneAreNamedByThemselves) {
  const auto file = write(kWithoutData + "[[data.train]]\npath = 'a'\nlimit = 5\n");
  const std::vector<std::string> flags = {"--data.train", "b"};
  EXPECT_EQ(load(file, flags).data.train, (std::vector<DataSet>{{.path = "b", .limit = 5}}));
  const auto two = write(kWithoutData + "data.train = ['a', 'b']\n");
  EXPECT_EQ(faults(two, flags),
            "--data.train b: there are 2 of them: give --data.train[0].path or another");
}

TEST_F(Lists, WantWhatEachItemNeeds) {
  const auto file = write(kWithoutData + "[[data.train]]\nlimit = 5\n");
  EXPECT_THAT(faults(file), HasSubstr("data.train[0].path is missing: give path = \"…\" under "
                                      "[[data.train]], or --data.train[0].path …"));
  EXPECT_THAT(faults(write(kWithoutData + "data.train = []\n")),
              HasSubstr("run.toml:3: data.train is missing"));
}

TEST_F(Lists, OfSinksAreOneOfAKind) {
  EXPECT_THAT(faults(write(kRequired + "[[log.sink]]\npath = 'a'\n[[log.sink]]\npath = 'b'\n")),
              HasSubstr("log.sink[1] is of the kind that log.sink[0] has: one of each is enough"));
  const RunConfig config = load(write(kRequired + R"(
[log]
name = "first"
project = "p"
tags = ["a", "b"]
[[log.sink]]
kind = "tensorboard"
[[log.sink]]
kind = "wandb"
sync = true
)"),
                                {});
  EXPECT_EQ(config.log.tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(sink_of(config.log, SinkKind::Wandb)->sync);
  EXPECT_EQ(sink_of(config.log, SinkKind::Mlflow), nullptr);
  EXPECT_EQ(jsonl_path(config.log), "");  // it is written without a sink too
  EXPECT_EQ(load(write(kRequired + "log.sink = []\n"), {}).log.sink.size(), 0U);
  const std::vector<std::string> flags = {"--log.sink[1].kind", "mlflow", "--log.tags", "x,y"};
  const RunConfig of_flags = load(write(kRequired), flags);
  EXPECT_THAT(of_flags.log.sink, SizeIs(2));
  EXPECT_EQ(of_flags.log.tags, (std::vector<std::string>{"x", "y"}));
}

TEST_F(Lists, AWeightIsAboveZero) {
  for (const std::string weight : {"0", "-1", "'a'"}) {
    EXPECT_THAT(faults(write(kWithoutData + "[[data.train]]\npath = 'a'\nweight = " + weight)),
                HasSubstr("data.train[0].weight = "))
        << weight;
  }
}

}  // namespace
}  // namespace llm::config::testing
