#include "launch/host_list.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostList, ExpandsNamesAndRanges) {
  EXPECT_THAT(expand_host_list("localhost"), ElementsAre("localhost"));
  EXPECT_THAT(expand_host_list("a,b.example.org"), ElementsAre("a", "b.example.org"));
  EXPECT_THAT(expand_host_list("node[01-04,7],login"),
              ElementsAre("node01", "node02", "node03", "node04", "node7", "login"));
  EXPECT_THAT(expand_host_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_host_list("n[098-101]-ib"),
              ElementsAre("n098-ib", "n099-ib", "n100-ib", "n101-ib"));
}

TEST(HostList, LetsTheLeftmostBracketVarySlowest) {
  EXPECT_THAT(expand_host_list("rack[1-2]n[1-3]"),
              ElementsAre("rack1n1", "rack1n2", "rack1n3", "rack2n1", "rack2n2", "rack2n3"));
}

TEST(HostList, RefusesWhatIsNoList) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "a host without a name"},
      {"a,,b", "a host without a name"},
      {"n[1-3", "a bracket is not closed"},
      {"n1-3]", "a bracket is closed that was not opened"},
      {"n[]", "\"\" is not a number or a range of numbers"},
      {"n[1-x]", "\"1-x\" is not a number or a range of numbers"},
      {"n[1--3]", "\"1--3\" is not a number or a range of numbers"},
      {"n[5-2]", "the range 5-2 runs backwards or is too long"},
      {"n[0-99999999]", "the range 0-99999999 runs backwards or is too long"},
      {"n[0-999999999999999999999999]", "is not a number or a range of numbers"},
      {"n[0-65535][0-65535][0-65535]", "more than 65536 hosts"},
      {"n[1-1000][1-1000]", "more than 65536 hosts"},
      {"n[1-60000],m[1-60000]", "more than 65536 hosts"},
  };
  for (const auto& [list, why] : cases) {
    try {
      static_cast<void>(expand_host_list(list));
      ADD_FAILURE() << list << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      EXPECT_THAT(error.what(), HasSubstr("Slurm's list \"" + list + "\": "));
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }
}

// A range that ends at the largest number there is has an end.
TEST(HostList, ExpandsTheLargestNumbers) {
  EXPECT_THAT(expand_host_list("x[18446744073709551615]"), ElementsAre("x18446744073709551615"));
  EXPECT_THAT(expand_host_list("x[18446744073709551614-18446744073709551615]"),
              ElementsAre("x18446744073709551614", "x18446744073709551615"));
}

TEST(TasksPerNode, Expands) {
  EXPECT_THAT(expand_tasks_per_node("4"), ElementsAre(4));
  EXPECT_THAT(expand_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
}

TEST(TasksPerNode, RefusesWhatIsNoCount) {
  for (const char* text : {"", "x", "2(x", "2(x)", "2(x3", "2,,1", "1(x999999999)", "-1"}) {
    EXPECT_THROW(static_cast<void>(expand_tasks_per_node(text)), Error) << text;
  }
}

}  // namespace
}  // namespace sherd::launch
