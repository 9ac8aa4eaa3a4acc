// `sherd compare` of real runs.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/e2e/browser.h"
#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Compare : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    const Arguments evaluated = {"--data.eval", kQuestions, "--eval.every", "epoch"};
    expect_code(0, train(run("one"), "6") + evaluated);
    expect_code(0, on_ranks(2, train(run("two"), "6") + evaluated));
    expect_code(0, train(run("other"), "3"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static fs::path run(const std::string& name) { return folder_->path() / name; }
  static fs::path page() { return folder_->path() / "page.html"; }
  static Arguments compare(const Arguments& more) { return Arguments{"compare"} + more; }

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Compare, HasTheFiguresOfEachRun) {
  const json found =
      json::parse(expect_code(0, compare({run("one"), run("two"), "--json", "--strict"})).out);
  EXPECT_EQ(found.at("comparable"), true);
  const json& one = found.at("runs").at(0);
  const json& two = found.at("runs").at(1);
  EXPECT_EQ(one.at("ranks"), 1);
  EXPECT_EQ(two.at("ranks"), 2);
  for (const json& each : {one, two}) {
    EXPECT_EQ(each.at("steps"), 6);
    EXPECT_EQ(each.at("train_loss_by_epoch").size(), 2);  // three steps an epoch
    EXPECT_EQ(each.at("eval_loss_by_epoch").size(), 2);
    EXPECT_GT(each.at("train_samples_per_second"), 0.0);
    EXPECT_GT(each.at("eval_samples_per_second"), 0.0);
    EXPECT_GT(each.at("max_peak_bytes"), each.at("constant_bytes"));
  }
  EXPECT_EQ(one.at("train_loss"), two.at("train_loss"));  // the same run, on one rank and on two
  EXPECT_NEAR(two.at("speedup").get<double>(),
              two.at("train_samples_per_second").get<double>() /
                  one.at("train_samples_per_second").get<double>(),
              1e-9);
}

TEST_F(Compare, TellsWhatIsNotComparable) {
  const Ended ended = expect_code(1, compare({run("one"), run("other"), "--strict"}));
  EXPECT_THAT(ended.out, HasSubstr("not comparable: other: steps 3, one: 6"));
  expect_code(0, compare({run("one"), run("other")}));
}

TEST_F(Compare, WritesAPageAndCsv) {
  const Ended ended = expect_code(0, compare({run("one"), "--csv", "--html", page()}));
  EXPECT_THAT(ended.out, HasSubstr("name,strategy,ranks,"));
  EXPECT_THAT(read_file(page()), HasSubstr("<td>one</td><td>full_shard</td><td>1</td>"));
}

/// Eight runs, as many as the workshop has.
class ComparePage : public Compare {
 protected:
  static constexpr std::size_t kRuns = 8;

  // Copies of two runs: the curves coincide, and the browser must tell them apart all the same.
  static Arguments eight_runs() {
    Arguments runs;
    for (std::size_t i = 1; i <= kRuns; ++i) {
      runs.push_back(run(std::to_string(i) + "-of-the-workshop").string());
      if (!fs::exists(runs.back())) {
        fs::copy(run(i % 2 == 0 ? "two" : "one"), runs.back(), fs::copy_options::recursive);
      }
    }
    return runs;
  }
  static ShownPage page_on(const Screen& screen) {
    expect_code(0, compare(eight_runs() + Arguments{"--html", page()}));
    return shown(page(), screen);
  }
  static void expect_figures(const std::string& dom, const json& runs) {
    const std::size_t begin = dom.find("<table id=\"runs\">");
    const std::string figures = dom.substr(begin, dom.find("</table>", begin) - begin);
    const auto titles = texts_of(figures, "th");
    const auto cells = texts_of(figures, "td");
    ASSERT_EQ(cells.size(), runs.size() * titles.size()) << dom;
    const std::map<std::string, std::string> shown = {
        {"ranks", "ranks"},         {"global batch", "global_batch"},
        {"steps", "steps"},         {"train loss", "train_loss"},
        {"eval loss", "eval_loss"}, {"samples/s", "train_samples_per_second"},
        {"speed-up", "speedup"},    {"runtime s", "runtime_seconds"}};
    std::size_t compared = 0;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const json& run = runs.at(i / titles.size());
      const std::string& title = titles[i % titles.size()];
      const double program = run.at("constant_bytes").get<double>();
      const auto found = shown.find(title);
      const double value = title == "program MiB" ? program / (1 << 20)
                           : title == "state MiB"
                               ? (run.at("max_peak_bytes").get<double>() - program) / (1 << 20)
                           : found != shown.end() ? run.at(found->second).get<double>()
                                                  : NAN;
      if (!std::isnan(value)) {
        EXPECT_NEAR(std::stod(cells[i]), value, std::max(0.01 * std::abs(value), 0.005)) << title;
        ++compared;
      }
    }
    EXPECT_EQ(compared, runs.size() * (shown.size() + 2));
  }
};

// A browser without a network shows the numbers of the runs, a curve and a bar of each.
TEST_F(ComparePage, ShowsTheFiguresOfTheRuns) {
  if (browser().empty()) {
    GTEST_SKIP() << kNoBrowser;
  }
  const std::string dom = page_on({}).dom;
  const json found = json::parse(expect_code(0, compare(eight_runs() + Arguments{"--json"})).out);
  expect_figures(dom, found.at("runs"));
  EXPECT_EQ(found.at("conclusions").size(), 3U);
  EXPECT_THAT(dom, HasSubstr("<li>Speed: 1-of-the-workshop trains "));
  EXPECT_EQ(texts_of(dom, "figure").size(), 6U);  // three of curves, three of bars
  EXPECT_EQ(texts_of(dom, "polyline").size(), 3U * kRuns);
  std::size_t bars = 0;
  for (const std::string& div : texts_of(dom, "div")) {
    bars += div.starts_with("<span>") ? 1 : 0;
  }
  EXPECT_EQ(bars, 3U * kRuns);
  EXPECT_THAT(dom, HasSubstr("<table id=\"settings\">"));
}

// Nothing lies outside of a screen, each run has its own line, and text is light on a dark page.
TEST_F(ComparePage, FitsADesktopAndAPhoneInLightAndDark) {
  if (browser().empty()) {
    GTEST_SKIP() << kNoBrowser;
  }
  for (const Screen& screen : {Screen{}, Screen{1280, true}, kPhone, kDarkPhone}) {
    const ShownPage found = page_on(screen);
    const std::string colour = screen.is_dark ? "rgb(255, 255, 255)" : "rgb(0, 0, 0)";
    EXPECT_EQ(found.content_width_px, screen.width_px);
    EXPECT_EQ(found.text_colour, colour);
    ASSERT_FALSE(found.svg_colours.empty());
    EXPECT_THAT(found.svg_colours, testing::Each(colour));
    EXPECT_EQ(found.legend_lines.size(), kRuns);
    const std::set<std::string> lines(found.legend_lines.begin(), found.legend_lines.end());
    EXPECT_EQ(lines.size(), kRuns) << testing::PrintToString(lines);
  }
}

TEST_F(Compare, TakesARunThatGoesOnOrWasKilled) {
  const fs::path broken = run("broken");
  fs::copy(run("one"), broken, fs::copy_options::recursive);
  fs::remove(broken / "summary.json");
  fs::resize_file(broken / "log.jsonl", fs::file_size(broken / "log.jsonl") - 10);
  EXPECT_THAT(expect_code(0, compare({broken})).out, HasSubstr("broken"));
}

TEST_F(Compare, RefusesWhatIsNoRun) {
  EXPECT_THAT(expect_code(66, compare({kModel})).err,
              HasSubstr("is not a run: it contains no config.toml"));
  EXPECT_THAT(expect_code(66, compare({run("nowhere")})).err, HasSubstr("nowhere"));
  EXPECT_THAT(expect_code(64, {"compare"}).err, HasSubstr("runs is required"));
  expect_code(64, compare({run("one"), "--csv", "--json"}));
  expect_code(73, compare({run("one"), "--html", "/no/such/folder/page.html"}));
}

TEST_F(Compare, AStoppedRunEndsWithItsSummaryToo) {
  const fs::path output = run("stopped");
  Program program(train(output, "400"));
  program.wait_for("step 3/");
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75);
  EXPECT_THAT(ended.out, HasSubstr("summary: stopped: train_loss "));
  const json summary = json::parse(read_file(output / "summary.json"));
  EXPECT_EQ(summary.at("ended"), "stopped");
  const std::string log = read_file(output / "log.jsonl");
  EXPECT_THAT(log, HasSubstr(R"({"event":"end","step":)"));
  EXPECT_THAT(log, HasSubstr(R"("how":"stopped")"));
}

// The disk of the checkpoints is away: what was learned until then is told.
TEST_F(Compare, AFailedRunEndsWithItsSummaryToo) {
  const fs::path output = run("failed");
  Program program(train(output, "400") + Arguments{"--checkpoint.every", "6 steps"});
  program.wait_for("checkpoint ");
  fs::rename(output / "checkpoints", run("away"));
  std::ofstream(output / "checkpoints") << "a file";
  const Ended ended = program.finish();
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.out, HasSubstr("summary: failed: train_loss "));
  EXPECT_EQ(json::parse(read_file(output / "summary.json")).at("ended"), "failed");
  EXPECT_THAT(read_file(output / "log.jsonl"), HasSubstr(R"("how":"failed","why":")"));
  EXPECT_THAT(expect_code(0, {"watch", output.string()}).out, HasSubstr("; failed: "));
}

TEST_F(Compare, ARunEndsWithItsSummary) {
  const json summary = json::parse(read_file(run("one") / "summary.json"));
  EXPECT_EQ(summary.at("name"), "one");
  EXPECT_EQ(summary.at("steps"), 6);
  EXPECT_EQ(summary.at("ended"), "finished");
  const Ended again = expect_code(0, train(run("told"), "3"));
  EXPECT_THAT(again.out, HasSubstr("summary: train_loss "));
  EXPECT_THAT(again.out, HasSubstr(" samples/s, "));
}

}  // namespace
}  // namespace sherd::test
