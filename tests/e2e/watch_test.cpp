// `sherd watch` beside a run that goes on.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(Watch, ShowsARunWithoutDisturbingIt) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program run(train(output, "400"));
  run.wait_for("step 3/");
  const std::string seen = expect_code(0, {"watch", output.string()}).out;
  EXPECT_THAT(seen, HasSubstr("run: " + kModel + ", 1 rank on 1 host; running\n"));
  EXPECT_THAT(seen, HasSubstr("/400 | loss "));
  EXPECT_THAT(seen, HasSubstr("\ntraining loss\n"));
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  EXPECT_THAT(expect_code(0, {"watch", output.string(), "--once"}).out,
              HasSubstr("; stopped: the same command goes on\n"));
}

TEST(Watch, RefusesWhatIsNoRun) {
  EXPECT_THAT(expect_code(66, {"watch", "/no/such"}).err,
              HasSubstr("'/no/such' is not the folder of a run"));
  EXPECT_THAT(expect_code(64, {"watch"}).err, HasSubstr("run is required"));
}

}  // namespace
}  // namespace sherd::test
