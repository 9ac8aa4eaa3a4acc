#include "launch/rank_process.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"
#include "tests/launch/child.h"

namespace sherd::launch {
namespace {

using ::testing::HasSubstr;

/// Everything on standard error until nobody holds it.
std::string errors_of(RankProcess& process) {
  std::string text;
  for (;;) {
    pollfd event{process.stderr_fd(), POLLIN, 0};
    ::poll(&event, 1, -1);
    const Bytes bytes = read_available(process.stderr_fd());
    text += bytes.data;
    if (bytes.at_end) {
      return text;
    }
  }
}

TEST(RankProcess, GetsItsVariablesAndAnEmptyStandardInput) {
  Pipe input = make_pipe();
  write_all(input.write_end.get(), "not for this rank");
  input.write_end.close();
  const FileDescriptor own_input(::dup(STDIN_FILENO));
  ::dup2(input.read_end.get(), STDIN_FILENO);
  ::setenv("SHERD_TEST_GONE", "1", 1);
  ::setenv("SHERD_TEST_REPLACED", "old", 1);
  const std::vector<std::string> command = {
      "sh", "-c", "cat >&2; echo \"[$SHERD_TEST_GONE][$SHERD_TEST_REPLACED]\" >&2"};
  RankProcess process({.command = command,
                       .variables = {"SHERD_TEST_REPLACED=new"},
                       .unset_variables = {"SHERD_TEST_GONE"}});
  EXPECT_EQ(errors_of(process), "[][new]\n");
  ::dup2(own_input.get(), STDIN_FILENO);
}

TEST(RankProcess, SaysWhatCannotBeExecuted) {
  const std::vector<std::string> command = {"no-such-program-here"};
  try {
    const RankProcess process({.command = command});
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::InputMissing);
    EXPECT_THAT(error.what(),
                HasSubstr("cannot execute no-such-program-here: No such file or directory"));
  }
}

TEST(RankProcess, HearsNews) {
  const std::vector<std::string> command = {"sh", "-c",
                                            "eval \"cat <&$SHERD_SUPERVISOR_FD\" | head -1 >&2"};
  RankProcess process({.command = command});
  process.tell("rank 5 is gone");
  pollfd event{process.stderr_fd(), POLLIN, 0};
  ::poll(&event, 1, -1);
  EXPECT_EQ(read_available(process.stderr_fd()).data, "rank 5 is gone\n");
}

TEST(RankProcess, IsKilledWithItsOwner) {
  Pipe watched = make_pipe();
  const std::vector<std::string> command = {"sleep", "1000"};
  {
    const RankProcess process({.command = command, .inherited_fd = watched.write_end.get()});
    watched.write_end.close();
  }
  set_non_blocking(watched.read_end.get());
  EXPECT_TRUE(read_available(watched.read_end.get()).at_end);
}

}  // namespace
}  // namespace sherd::launch
