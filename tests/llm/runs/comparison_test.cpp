// Runs compared: figures, tables, conclusions, and what is not comparable.

#include "llm/runs/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/llm/runs/written_run.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using sherd::test::TempFolder;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Compared : public testing::Test {
 protected:
  Comparison beside(const WrittenRun& other) {
    return compare({WrittenRun().write(folder_.path()), other.write(folder_.path())});
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  // In all that shows it.
  static void expect_scaling(const Comparison& both, const std::string& word) {
    EXPECT_THAT(table_of(both).at(0), Contains("scaling"));
    EXPECT_EQ(table_of(both).at(1).back(), "");
    EXPECT_EQ(table_of(both).at(2).back(), word);
    EXPECT_THAT(to_json(both), HasSubstr(R"("scaling":")" + word + "\""));
    EXPECT_THAT(to_html(both), HasSubstr("<td>" + word + "</td>"));
  }

 private:
  TempFolder folder_;
};

TEST_F(Compared, OfTheSameBatchShowStrongScaling) {
  const Comparison both = beside({.name = "two", .ranks = 2, .step_seconds = 0.25});
  EXPECT_THAT(both.differences, IsEmpty());
  EXPECT_EQ(both.runs[0].speedup, 1);
  EXPECT_EQ(both.runs[1].speedup, 2);
  EXPECT_EQ(both.runs[1].scaling_efficiency, 1);
  expect_scaling(both, "strong");
}

TEST_F(Compared, OfTheSameBatchARankShowWeakScaling) {
  const Comparison both = beside({.name = "two", .ranks = 2, .global_batch = 16});
  EXPECT_THAT(both.differences, IsEmpty());
  EXPECT_EQ(both.runs[1].scaling_efficiency, 1);
  expect_scaling(both, "weak");
}

TEST_F(Compared, OfAnotherBatchShowNeither) {
  expect_scaling(beside({.name = "two", .ranks = 2, .global_batch = 12}), "neither");
}

TEST_F(Compared, OfAsManyRanksShowNoScaling) {
  const Comparison both = beside({.name = "other"});
  EXPECT_THAT(to_text(both), Not(HasSubstr("scaling")));
  EXPECT_THAT(to_json(both), HasSubstr(R"("scaling":null)"));
}

TEST_F(Compared, SayWhatIsNotTheSame) {
  const Comparison both = beside(
      {.name = "other", .lr = 0.5, .global_batch = 16, .data_sha256 = "d2", .isa = "avx512"});
  EXPECT_FALSE(both.comparable());
  EXPECT_THAT(both.differences, ElementsAre("other: train.global_batch = 16, first: 8",
                                            "other: optim.lr = 0.5, first: 0.001",
                                            "other: SHA-256 of data.train d2, first: d1",
                                            "other: instructions avx512, first: avx2"));
  EXPECT_THAT(to_text(both), HasSubstr("not comparable: other: optim.lr = 0.5, first: 0.001"));
}

TEST_F(Compared, SayThatOtherQuestionsWereEvaluated) {
  const auto of = [&](const std::string& name, const std::string& sha, int samples,
                      const std::string& set) {
    return WrittenRun{.name = name,
                      .eval_data = fmt::format(
                          R"(,"data_sha256":"{}","samples":{},"data_index":0,"data_set":"{}")", sha,
                          samples, set)}
        .write(folder());
  };
  const auto differences = [&](const std::filesystem::path& other) {
    return compare({of("first", "e1", 10, "s1"), other}).differences;
  };
  EXPECT_THAT(differences(of("same", "e1", 10, "s1")), IsEmpty());
  EXPECT_THAT(differences(of("file", "e2", 10, "s2")),
              ElementsAre("file: SHA-256 of data.eval[0] e2, first: e1"));
  EXPECT_THAT(differences(of("limit", "e1", 5, "s2")),
              ElementsAre("limit: samples of data.eval[0] 5, first: 10"));
  EXPECT_THAT(differences(of("order", "e1", 10, "s2")),
              ElementsAre("order: choice of samples of data.eval[0] s2, first: s1"));
}

// Twelve digits are enough for people.
TEST_F(Compared, ShowTwelveDigitsOfADigest) {
  const std::string digest(64, 'a');
  const Comparison both =
      compare({WrittenRun{.data_sha256 = digest}.write(folder()),
               WrittenRun{.name = "other", .data_sha256 = "b" + digest}.write(folder())});
  EXPECT_THAT(both.differences,
              ElementsAre("other: SHA-256 of data.train baaaaaaaaaaa, first: aaaaaaaaaaaa"));
}

// A curve ends at the run's last step, however many points it has.
TEST_F(Compared, KeepTheLastPointOfALongCurve) {
  std::string steps;
  for (int step = 5; step <= 1500; ++step) {
    steps += fmt::format(R"({{"step":{},"loss":1,"supervised_tokens":1}})", step) + "\n";
  }
  const std::string page = to_html(compare({WrittenRun().write(folder(), steps)}));
  const std::size_t last_x = 624;  // of the page's curves, whose axis ends at 1500
  EXPECT_THAT(page, HasSubstr(fmt::format(" {}.0,", last_x)));
}

TEST_F(Compared, AreATableForPeople) {
  const std::string text = to_text(beside({.name = "two", .ranks = 2, .step_seconds = 0.25}));
  EXPECT_THAT(text,
              HasSubstr("                          global         train  eval\n"
                        "run      strategy  ranks   batch  steps   loss  loss    EM    F1\n"));
  EXPECT_THAT(text,
              HasSubstr("two    full_shard      2       8      4    2.5   2.5  20.0  25.0\n"));
  EXPECT_THAT(text, HasSubstr("loss by epoch\n"
                              "               first            two\n"
                              "epoch   train   eval   train   eval\n"
                              "1         3.5    3.5     3.5    3.5\n"
                              "2         1.5    2.5     1.5    2.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("not comparable")));
}

/// Eight runs of 40 epochs, as `widest_line` of their text shows.
class ManyRuns : public Compared {
 protected:
  [[nodiscard]] Comparison eight(const std::string& name) const {
    std::string more;
    for (int epoch = 3; epoch <= 40; ++epoch) {
      const std::string step = fmt::format(
          R"({{"step":{},"loss":{},"supervised_tokens":1,"step_seconds":1234.5,"epoch":{},)"
          R"("mfu":0.25,"phase_seconds":{{"gather":1234.5,"forward":1234.5,"backward":1234.5,)"
          R"("reduce":1234.5,"clip":1,"wait":1234.5,"optimizer":1234.5,"other":1}}}})",
          epoch + 2, 1.2345 + epoch, epoch);
      more += step + "\n" + WrittenRun::evaluation(epoch + 2, 2.3456 + epoch, 10) + "\n";
    }
    std::vector<std::filesystem::path> runs;
    for (int i = 1; i <= 8; ++i) {
      runs.push_back(
          WrittenRun{.name = fmt::format("{}-{}", name, i), .ranks = i}.write(folder(), more));
    }
    return compare(runs);
  }
  static std::size_t widest_line(const std::string& text) {
    std::size_t widest = 0;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      widest = std::max(widest, text.find('\n', at) - at);
    }
    return widest;
  }
};

TEST_F(ManyRuns, FitIntoATerminal) {
  const Comparison comparison = eight("3-full-shard-disk");
  const std::string text = to_text(comparison) + "\n";
  EXPECT_LE(widest_line(text), 80);
  for (const ComparedRun& run : comparison.runs) {
    EXPECT_THAT(text, HasSubstr(run.records.name));
  }
  for (const char* const title : {"batch", "steps", "MFU", "scaling", "backward"}) {
    EXPECT_THAT(text, HasSubstr(title));
  }
  EXPECT_THAT(text, HasSubstr("\n40            41.23  42.35"));
}

TEST_F(ManyRuns, OfLongNamesAreNumbered) {
  const std::string name = "no_shard-lr=0.0001-weight_decay=0.01";
  const std::string text = to_text(eight(name)) + "\n";
  EXPECT_LE(widest_line(text.substr(0, text.find("Losses:"))), 80);
  EXPECT_THAT(text, HasSubstr("run 8: " + name + "-8\n"));
  EXPECT_THAT(text, HasSubstr("\nrun 8  full_shard      8"));
}

TEST_F(Compared, LeaveOutColumnsThatNoRunHas) {
  const std::string text = to_text(beside({.name = "two"}));
  EXPECT_THAT(text, HasSubstr("EM"));
  EXPECT_THAT(text, Not(HasSubstr("MFU")));
  EXPECT_THAT(text, Not(HasSubstr("program")));  // no plan.json
  std::ofstream(WrittenRun{.name = "bare"}.write(folder()) / "log.jsonl")
      << WrittenRun().step(1) << "\n";
  const std::string bare = to_text(compare({folder() / "bare"}));
  EXPECT_THAT(bare, Not(HasSubstr("EM")));
  EXPECT_THAT(bare, Not(HasSubstr("eval")));
}

/// Runs whose ranks' memory was measured.
class MeasuredRuns : public Compared {
 protected:
  [[nodiscard]] std::filesystem::path run(const WrittenRun& run, int state_mib) const {
    const std::filesystem::path path = run.write(folder());
    constexpr int kMib = 1 << 20;
    std::ofstream(path / "plan.json")
        << fmt::format(R"({{"constant_bytes":{},"measured":{{"rank_peak_bytes":[{},{}]}}}})",
                       100 * kMib, (state_mib - 2) * kMib, state_mib * kMib);
    return path;
  }
};

TEST_F(MeasuredRuns, HaveTheStateOfTheLargestRankAndTheProgram) {
  const Comparison both = compare({run({}, 64), run({.name = "two", .ranks = 2}, 32)});
  EXPECT_EQ(state_bytes(both.runs[1].summary), 32 << 20);
  const std::string text = to_text(both);
  EXPECT_THAT(text, HasSubstr("                      mean   max\n"));
  EXPECT_THAT(text, HasSubstr("run      MiB      MiB   MiB   MiB  samples/s"));
  EXPECT_THAT(text, HasSubstr("two       32      100   131   132         16"));
  EXPECT_THAT(to_csv(both), HasSubstr(",global_batch,steps,state_mib,program_mib\n"));
  EXPECT_THAT(to_csv(both), testing::EndsWith(",8,4,32,100"));
}

TEST_F(MeasuredRuns, ConcludeInThreeSentences) {
  const Comparison three =
      compare({run({}, 64), run({.name = "two", .ranks = 2, .step_seconds = 0.25}, 32),
               run({.name = "four", .ranks = 4, .global_batch = 16}, 16)});
  EXPECT_THAT(
      conclusions_of(three),
      ElementsAre("Losses: all 3 runs have the same losses in each of 4 steps, bit for bit, "
                  "although they differ in ranks, train.global_batch.",
                  "Memory: the model's state takes 64 MiB per rank in first. With 2 ranks: 0.50 x "
                  "(two); with 4 ranks: 0.25 x (four). The program itself takes 100 MiB per rank "
                  "in addition.",
                  "Speed: first trains 16 samples/s. With 2 ranks: 2.00 x (two); with 4 ranks: "
                  "2.00 x (four)."));
  const std::string text = to_text(three);
  EXPECT_THAT(text, HasSubstr("\nMemory: the model's state takes 64 MiB per rank in first."));
  EXPECT_THAT(to_html(three), HasSubstr("<li>Speed: first trains 16 samples/s."));
}

TEST_F(Compared, ConcludeWhoseLossesAreNotTheFirstRuns) {
  const auto with_loss = [&](const std::string& name, const std::string& loss) {
    return WrittenRun{.name = name}.write(
        folder(), R"({"step":5,"supervised_tokens":1,"loss":)" + loss + "}\n");
  };
  const auto losses = [](const Comparison& comparison) { return conclusions_of(comparison).at(0); };
  const auto first = with_loss("first", "1");
  const auto again = with_loss("again", "1");
  const auto close = with_loss("close", "1.001");
  const auto closer = with_loss("closer", "1.001");
  const auto shorter = WrittenRun{.name = "shorter", .global_batch = 12}.write(folder());
  EXPECT_EQ(losses(compare({first, again, close, closer, shorter})),
            "Losses: first, again have the same losses in each of 5 steps, bit for bit. close, "
            "closer agree, bit for bit, and differ from first by at most 0.1 %. shorter has other "
            "steps: see global batch and steps.");
  EXPECT_EQ(losses(compare({first, close})),
            "Losses: no run repeats those of first, bit for bit. close differs from first by at "
            "most 0.1 %.");
  EXPECT_EQ(
      losses(compare({first, with_loss("rounded", "1.000001")})),
      "Losses: no run repeats those of first, bit for bit. rounded differs from first by less "
      "than 0.001 %.");
  std::vector<std::filesystem::path> many = {first, again};
  for (int i = 2; i <= 6; ++i) {
    many.push_back(with_loss(fmt::format("lr-{}", i), fmt::format("{}", i)));
  }
  EXPECT_THAT(losses(compare(many)), testing::EndsWith(". The other 5 runs have other losses."));
  EXPECT_THAT(conclusions_of(compare({first})), IsEmpty());
}

TEST_F(Compared, ShowTheSettingsThatDiffer) {
  EXPECT_THAT(settings_table_of(beside({.name = "same"})), IsEmpty());
  const Rows rows = settings_table_of(beside({.name = "two", .ranks = 2, .lr = 0.5}));
  EXPECT_THAT(
      rows, ElementsAre(ElementsAre("run", "ranks", "optim.lr"), ElementsAre("first", "1", "0.001"),
                        ElementsAre("two", "2", "0.5")));
}

TEST_F(Compared, HaveAColumnOfTheUtilizationWhereSomeKnowIt) {
  const Comparison both = beside({.name = "two", .more_of_a_step = R"(,"mfu":0.25)"});
  EXPECT_THAT(to_text(both), HasSubstr("steps/s    MFU  samples/s"));
  EXPECT_THAT(to_text(both), HasSubstr("      2  0.250         10"));
  EXPECT_THAT(to_csv(both), HasSubstr("train_steps_per_second,mfu,"));
  EXPECT_THAT(to_csv(beside({.name = "three"})), Not(HasSubstr("mfu")));
}

TEST_F(Compared, AreJsonAndCsv) {
  const Comparison both = beside({.name = "a,b", .ranks = 2, .step_seconds = 0.25});
  const auto json = nlohmann::json::parse(to_json(both));
  EXPECT_EQ(json.at("comparable"), true);
  const auto& run = json.at("runs").at(1);
  EXPECT_EQ(run.at("name"), "a,b");
  EXPECT_EQ(run.at("train_samples_per_second"), 32);
  EXPECT_EQ(run.at("speedup"), 2);
  EXPECT_EQ(run.at("em"), 20);
  EXPECT_EQ(run.at("eval_loss_by_epoch").size(), 2);
  EXPECT_THAT(to_csv(both), HasSubstr("name,strategy,ranks,train_loss,"));
  EXPECT_THAT(to_csv(both), HasSubstr("\n\"a,b\",full_shard,2,2.5,"));
}

TEST_F(Compared, HaveNamesThatDifferWhereTheirFoldersHaveOneName) {
  const auto at = [&](const std::string& parent) {
    const auto path = folder() / parent;
    std::filesystem::create_directories(path);
    return WrittenRun{.name = "run", .lr = parent == "a/one" ? 0.001 : 0.5}.write(path);
  };
  const auto other = WrittenRun{.name = "other"}.write(folder());
  const Comparison all = compare({at("a/one"), at("b/one"), other, at("two"), other});
  std::vector<std::string> names;
  for (const ComparedRun& run : all.runs) {
    names.push_back(run.records.name);
  }
  EXPECT_THAT(names, ElementsAre("a/one/run", "b/one/run", "other", "two/run", "other"));
  EXPECT_THAT(all.differences, Contains("two/run: optim.lr = 0.5, a/one/run: 0.001"));
  EXPECT_THAT(to_text(all), HasSubstr("b/one/run"));
}

TEST_F(Compared, AreAPageThatNeedsNothingElse) {
  const std::string page = to_html(beside({.name = "<b>&", .lr = 0.5}));
  EXPECT_THAT(page, HasSubstr("<td>&lt;b&gt;&amp;</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<b>&")));
  EXPECT_THAT(page, HasSubstr("<figure id=\"loss\">"));
  EXPECT_THAT(page, HasSubstr("<table id=\"losses\">"));
  EXPECT_THAT(page, HasSubstr("<th>first train</th>"));
  EXPECT_THAT(page, HasSubstr("<table id=\"settings\">"));
  EXPECT_THAT(page, HasSubstr("<li>&lt;b&gt;&amp;: optim.lr = 0.5, first: 0.001</li>"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf")));
}

TEST_F(Compared, ShowWhereTheTimeOfAStepWentInRunsThatTimedIt) {
  EXPECT_THAT(phases_table_of(beside({.name = "two"})), IsEmpty());
  const Comparison both = beside({.name = "timed",
                                  .step_seconds = 0.4,
                                  .more_of_a_step = R"(,"phase_seconds":{"forward":0.125})"});
  const auto rows = phases_table_of(both);
  EXPECT_THAT(rows, ElementsAre(ElementsAre("run", "all", "data", "forward"),
                                ElementsAre("timed", "400.0", "100.0", "125.0")));
  EXPECT_THAT(to_text(both), HasSubstr("time of a step, ms\nrun      all   data  forward"));
  EXPECT_THAT(to_html(both), HasSubstr("<table id=\"phases\">"));
}

}  // namespace
}  // namespace llm::runs
