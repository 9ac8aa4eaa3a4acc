// Bad commands end with the right exit code and one message, also under the launcher.

#include "launch/loopback_socket.h"
#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

// Expects the code and a part of the message.
void refuse(int code, const Arguments& arguments, const std::vector<std::string>& parts) {
  const Ended ended = expect_code(code, arguments);
  for (const std::string& part : parts) {
    EXPECT_THAT(ended.err, HasSubstr(part));
  }
}

TEST(BadCommand, UnknownVerbAndFlag) {
  refuse(64, {"trian"}, {"unknown command 'trian'", "train"});
  refuse(64, {}, {"subcommand"});
  refuse(64, {"eval", "--model", kModel, "--data", kQuestions, "--nonsense"}, {"--nonsense"});
  refuse(64, {"launch", "-n", "2", "export"},
         {"starts `train`, `eval`, `generate`, `bench`, `check` or `bandwidth`", "got 'export'"});
  refuse(64, {"launch", "-n", "0", "train"}, {"cannot launch 0 ranks"});
  const TempFolder folder;
  refuse(64, train(folder.path() / "run") + Arguments{"--optim.lrr", "1"},
         {"--optim.lrr", "did you mean --optim.lr"});
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

TEST(BadConfig, IsToldOnceUnderTheLauncher) {
  const TempFolder folder;
  const std::string typo = folder.write("typo.toml", "[train]\nglobal_bach = 4\n");
  const Ended ended = expect_code(64, on_ranks(2, {"train", typo}));
  EXPECT_THAT(ended.err, HasSubstr("typo.toml:2"));
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("[rank 1] sherd:")));
}

TEST(Help, IsPrintedOnceUnderTheLauncher) {
  const Ended ended = expect_code(0, on_ranks(2, {"train", "--help"}));
  const size_t first = ended.out.find("--optim.lr ");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(ended.out.find("--optim.lr ", first + 1), std::string::npos);
}

TEST(BadFlags, NameTheirVerbAndItsHelp) {
  refuse(64, {"eval", "--data", "none"},
         {"sherd eval: --model is required. See sherd eval --help."});
  refuse(64, {"launch", "-n", "2", "--port", "99999", "train"},
         {"sherd launch: ", "99999", "65535"});
  refuse(64, {"train", "--ranks"}, {"-n needs a number of ranks, from 1 to 1024"});
}

TEST(BadPort, InUse) {
  const TempFolder folder;
  const launch::LoopbackSocket taken = launch::listen_on_loopback({});
  refuse(69,
         Arguments{"launch", "-n", "2", "--port", std::to_string(taken.port)} +
             train(folder.path() / "run"),
         {std::to_string(taken.port)});
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

}  // namespace
}  // namespace sherd::test
