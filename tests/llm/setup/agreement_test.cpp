// Work that fails on all ranks or on none, and settings that must agree.

#include "llm/setup/agreement.h"

#include <atomic>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace llm::setup {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::run_ranks;

TEST(Together, FailsOnEveryRankAndIsToldByOne) {
  std::atomic<int> echoes = 0;
  std::atomic<int> originals = 0;
  run_ranks(3, [&](sherd::World world) {
    try {
      on_all_ranks(world, [&] {
        if (world.rank() > 0) {
          throw sherd::Error(ExitCode::BadData, "rank " + std::to_string(world.rank()));
        }
      });
      ADD_FAILURE();
    } catch (const ReportedElsewhere& error) {
      ++echoes;
      EXPECT_EQ(error.code(), ExitCode::BadData);
      EXPECT_STREQ(error.what(), "rank 1");  // the lowest that failed
    } catch (const sherd::Error& error) {
      ++originals;
      EXPECT_STREQ(error.what(), "rank 1");
      EXPECT_EQ(world.rank(), 1);
    }
  });
  EXPECT_EQ(echoes, 2);
  EXPECT_EQ(originals, 1);
}

TEST(Together, TellsOtherExceptionsByTheirCodes) {
  run_ranks(2, [](sherd::World world) {
    const auto fail = [&] {
      on_all_ranks(world, [&] {
        if (world.rank() == 0) {
          throw std::bad_alloc();
        }
      });
    };
    if (world.rank() == 0) {
      EXPECT_THROW(fail(), std::bad_alloc);
    } else {
      expect_error(fail, ExitCode::OutOfMemory, {});
    }
  });
}

// What oneDNN throws without memory, and what it throws otherwise.
TEST(Together, TellsOfMemoryThatHasEndedInOneDnn) {
  run_ranks(2, [](sherd::World world) {
    const auto fail = [&](const char* words) {
      on_all_ranks(world, [&] {
        if (world.rank() == 0) {
          throw std::runtime_error(words);
        }
      });
    };
    for (const auto& [words, code] :
         {std::pair("could not create a primitive", ExitCode::OutOfMemory),
          std::pair("could not create a primitive descriptor for a matmul", ExitCode::Internal)}) {
      if (world.rank() == 0) {
        EXPECT_THROW(fail(words), std::runtime_error);
      } else {
        expect_error([&, w = words] { fail(w); }, code, {});
      }
    }
  });
}

TEST(Together, ReturnsWhatWasRead) {
  run_ranks(2, [](sherd::World world) {
    EXPECT_EQ(read_on_all_ranks(world, [&] { return world.rank() + 5; }), world.rank() + 5);
    EXPECT_EQ(from_rank_0(world, [&] { return "of " + std::to_string(world.rank()); }), "of 0");
  });
}

TEST(Agreement, NamesKeyRanksAndBothValues) {
  run_ranks(4, [](sherd::World world) {
    Settings mine = {{"optim.lr", world.rank() % 2 == 0 ? "1e-4" : "2e-4"}, {"train.seed", "0"}};
    if (world.rank() == 2) {
      mine.emplace_back("log.new", "1");
    }
    expect_error([&] { require_agreement(world, mine); }, ExitCode::RanksDisagree,
                 {"optim.lr is 1e-4 on rank 0 and 2e-4 on ranks 1, 3",
                  "log.new is not there on rank 0 and 1 on rank 2"});
    EXPECT_NO_THROW(require_agreement(world, {{"optim.lr", "1e-4"}}));
  });
}

TEST(Agreement, NamesAnotherVersionOfSherd) {
  const sherd::Version later{sherd::kVersion.major + 1, 0, 0};
  run_ranks(2, [&](sherd::World world) {
    expect_error(
        [&] {
          if (world.rank() == 1) {
            require_agreement(world, with_version({}, later));  // what a later program does
          } else {
            static_cast<void>(agree_on_start(world, {}));
          }
        },
        ExitCode::RanksDisagree,
        {"the version of sherd is " + std::to_string(sherd::kVersion.major) + ".",
         std::to_string(later.major) + ".0.0 on rank 1"});
  });
}

}  // namespace
}  // namespace llm::setup
