// Numbers that decide whether a run begins.

#include "llm/plan/free_space.h"

#include <array>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llm/setup/peak_memory.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::plan {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

constexpr std::size_t kFileBytes = std::size_t{64} << 20;

// Adds up the pages of the file, so that all are resident.
int read_mapped(int file) {
  void* const mapped = ::mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, file, 0);
  int sum = 0;
  for (std::size_t at = 0; mapped != MAP_FAILED && at < kFileBytes; at += 4096) {
    sum += static_cast<const volatile char*>(mapped)[at];
  }
  return mapped == MAP_FAILED ? -1 : sum;
}

// Pss falls by half of a file that another process maps too.
TEST(Memory, OfARankDoesNotDependOnOtherPrograms) {
  const sherd::test::TempFolder folder;
  const int file =
      ::open((folder.path() / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  ASSERT_EQ(::ftruncate(file, kFileBytes), 0);
  std::array<int, 2> asked{};
  std::array<int, 2> answered{};
  ASSERT_EQ(::pipe(asked.data()) + ::pipe(answered.data()), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    char byte = 0;
    bool is_there = ::read(asked[0], &byte, 1) == 1 && read_mapped(file) == 0;
    is_there = is_there && ::write(answered[1], &byte, 1) == 1 && ::read(asked[0], &byte, 1) == 1;
    ::_exit(is_there ? 0 : 1);
  }
  const auto now = [] { return setup::resident_memory(/*local_ranks=*/2); };
  const setup::ResidentMemory without = now();
  ASSERT_EQ(read_mapped(file), 0);
  const setup::ResidentMemory alone = now();
  char byte = 0;
  ASSERT_EQ(::write(asked[1], &byte, 1), 1);
  ASSERT_EQ(::read(answered[0], &byte, 1), 1);
  const setup::ResidentMemory beside_another = now();
  ASSERT_EQ(::write(asked[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  const auto expect_near = [](std::int64_t found, std::int64_t expected) {
    EXPECT_NEAR(static_cast<double>(found), static_cast<double>(expected), 2 << 20);
  };
  expect_near(alone.file_bytes - without.file_bytes, kFileBytes / 2);
  expect_near(beside_another.bytes(), alone.bytes());
  expect_near(alone.own_bytes, without.own_bytes);  // which the system cannot take away
}

TEST(FreeSpace, OfACheckpointIsKnownBefore) {
  config::PrecisionSection memory;
  EXPECT_EQ(checkpoint_bytes(1000, memory), 12'000);
  memory.moments = config::MomentsDtype::BFloat16;
  EXPECT_EQ(checkpoint_bytes(1000, memory), 8'000);
}

TEST(FreeSpace, IsComparedWithWhatTheDiskHas) {
  const sherd::test::TempFolder folder;
  EXPECT_NO_THROW(require_free_space(folder.path().string(), 1, "it takes"));
  expect_error([&] { require_free_space(folder.path().string(), kGiB << 20, "it takes"); },
               ExitCode::CannotWrite,
               {folder.path().string(), "it takes 1048576.0 GiB", "free", "train.output"});
}

TEST(FreeSpace, OfARunIsThatOfAllItsCheckpoints) {
  using config::Every;
  const inputs::RunLength length{.rows = 80, .steps_per_epoch = 10, .total_steps = 40};
  config::CheckpointSection policy{.every = Every::steps(5), .keep = 2};
  EXPECT_EQ(most_checkpoints(policy, length), 3);
  policy.best = true;
  EXPECT_EQ(most_checkpoints(policy, length), 4);
  policy = {.every = Every::time(std::chrono::minutes(10)), .keep = 2};
  EXPECT_EQ(most_checkpoints(policy, length), 3);
  policy = {.every = Every::epoch(), .keep = 9};
  EXPECT_EQ(most_checkpoints(policy, length), 5);  // one per epoch, and one at a stop
  policy = {.every = {}, .keep = 2};
  EXPECT_EQ(most_checkpoints(policy, length), 1);
  EXPECT_EQ(most_checkpoints({.keep = 2}, {.rows = 8, .steps_per_epoch = 1, .total_steps = 1}), 1);
}

TEST(Memory, OfARankIsItsPartOfTheState) {
  constexpr PlannedParameters kAll = {.all = 1000, .trained = 1000};
  config::RunConfig config;
  EXPECT_EQ(least_rank_bytes(kAll, 1, config), 16'000);  // master, two moments, gradient
  EXPECT_EQ(least_rank_bytes(kAll, 4, config), 4'000);
  config.precision.param_dtype = config::ParamDtype::BFloat16;
  EXPECT_EQ(least_rank_bytes(kAll, 1, config), 18'000);
  config.precision.master = config::MasterFormat::Split;
  EXPECT_EQ(least_rank_bytes(kAll, 1, config), 16'000);
  config.precision.param_dtype = config::ParamDtype::Float16;  // has no halves
  EXPECT_EQ(least_rank_bytes(kAll, 1, config), 18'000);
}

TEST(Memory, OfFrozenParametersIsWhatTravels) {
  constexpr PlannedParameters kPart = {.all = 1000, .trained = 100};
  config::RunConfig config;
  EXPECT_EQ(least_rank_bytes(kPart, 1, config), 100 * 16 + 900 * 4);
  config.precision.param_dtype = config::ParamDtype::BFloat16;
  EXPECT_EQ(least_rank_bytes(kPart, 1, config), 100 * 18 + 900 * 2);
  EXPECT_EQ(least_rank_bytes(kPart, 4, config), 25 * 18 + 225 * 2);
  constexpr PlannedParameters kQuantized = {.all = 1000, .trained = 100, .in_8_bits = 640};
  EXPECT_EQ(least_rank_bytes(kQuantized, 1, config), 100 * 18 + 260 * 2 + 20 * 34);
  EXPECT_EQ(least_rank_bytes(kQuantized, 2, config), 50 * 18 + 130 * 2 + 10 * 34);
  config.memory.offload.parameter_folder = "/disk";
  EXPECT_EQ(least_rank_bytes(kPart, 1, config), 100 * 16);
  EXPECT_EQ(least_rank_bytes(kQuantized, 1, config), 100 * 16);
}

TEST(Memory, ThatIsNotThereIsRefusedWithNumbers) {
  EXPECT_NO_THROW(require_memory(kGiB, 2, 2 * kGiB));
  EXPECT_NO_THROW(require_memory(kGiB, 2, 0));  // not known
  expect_error(
      [] { require_memory(3 * kGiB, 2, 4 * kGiB); }, ExitCode::OutOfMemory,
      {"at least 3.0 GiB", "the 2 of this host 6.0 GiB in total", "4.0 GiB are available"});
  EXPECT_GT(setup::available_memory_bytes(1), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace llm::plan
