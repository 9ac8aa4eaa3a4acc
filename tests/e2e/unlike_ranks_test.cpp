// Ranks of hosts that each have their own folder in the place of the shared one.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two folders stand for the disks of two hosts.
TEST(UnlikeRanks, AreToldBeforeTheFirstStepThatTheyDoNotSeeOneOutputFolder) {
  const TempFolder folder;
  const fs::path input = kCases + "output-folder-not-shared";
  const std::string port = std::to_string(launch::listen_on_loopback({}).port);
  const auto start = [&](const std::string& rank, const std::string& host) {
    fs::create_directory(folder.path() / host);
    return std::make_unique<Program>(
        train_case(input / "tiny", input / "data.jsonl", "run"),
        Arguments{"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                  "HOST_FOLDER=" + (folder.path() / host).string()},
        "cd \"$HOST_FOLDER\" && exec \"$0\" \"$@\"");
  };
  const auto second = start("1", "host1"), first = start("0", "host0");
  const Ended zero = first->finish(), one = second->finish();
  EXPECT_EQ(zero.code, 78) << zero.out << zero.err;
  EXPECT_EQ(one.code, 78) << one.out << one.err;
  EXPECT_THAT(zero.err, HasSubstr("all ranks must see the same train.output"));
  EXPECT_THAT(zero.err, HasSubstr("rank 1 looked in '" + (folder.path() / "host1/run").string()));
  EXPECT_THAT(zero.out, Not(HasSubstr("step 1/")));
  EXPECT_TRUE(fs::is_empty(folder.path() / "host0"));
}

}  // namespace
}  // namespace sherd::test
