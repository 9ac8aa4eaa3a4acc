#include "llm/hub/failure_note.h"

#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "files/file_descriptor.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::hub {
namespace {

using sherd::test::TempFolder;

class FailureNote : public testing::Test {
 protected:
  TempFolder folder;
  sherd::files::FileDescriptor file{::open(folder.write("lock", "").c_str(), O_RDWR | O_CLOEXEC)};
};

TEST_F(FailureNote, IsTakenOverByWhoWantedTheSame) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a process knows its start to 10 ms
  take_over_failure(file.get(), "a");
  note_failure(file.get(), "a", "run", sherd::Error(sherd::ExitCode::NotAuthorised, "gated"));
  try {
    take_over_failure(file.get(), "a");
    FAIL() << "no failure";
  } catch (const FailedElsewhere& failure) {
    EXPECT_EQ(failure.code(), sherd::ExitCode::NotAuthorised);
    EXPECT_STREQ(failure.what(), "gated");
    EXPECT_EQ(failure.run(), "run");
  }
  take_over_failure(file.get(), "b");
}

TEST_F(FailureNote, IsNoneForWhoCameLater) {
  note_failure(file.get(), "a", "", sherd::Error(sherd::ExitCode::Unavailable, "busy"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::string self = "/proc/" + std::to_string(::getpid());
  const std::string later =
      self + "/exe --gtest_filter=FailureNote.DISABLED_Later --gtest_also_run_disabled_tests 3<" +
      self + "/fd/" + std::to_string(file.get()) + " >/dev/null";
  EXPECT_EQ(std::system(later.c_str()), 0);
}

// The other process of the test above.
TEST_F(FailureNote, DISABLED_Later) {
  take_over_failure(3, "a");
}

TEST_F(FailureNote, OfNonsenseIsNone) {
  for (const char* const text : {"", "{", "[]", "7", R"({"attempt": "a"})",
                                 R"({"attempt": 7, "boot": null, "milliseconds": "x"})"}) {
    ASSERT_EQ(::ftruncate(file.get(), 0), 0);
    ASSERT_EQ(::pwrite(file.get(), text, std::strlen(text), 0),
              static_cast<ssize_t>(std::strlen(text)));
    take_over_failure(file.get(), "a");
  }
  take_over_failure(-1, "a");
  note_failure(-1, "a", "", sherd::Error(sherd::ExitCode::Unavailable, "busy"));
}

}  // namespace
}  // namespace llm::hub
