// What the emulator itself shows.

#include "tests/emulator/emulator.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/emulator/gpu.h"

namespace sherd::emulator {
namespace {

using testing::HasSubstr;

TEST(Emulator, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> runs(3 * 48);
  play(3, 48, [&] { ++runs[static_cast<size_t>(block_index() * 48 + thread_index())]; });
  EXPECT_EQ(runs, std::vector<int>(3 * 48, 1));
}

TEST(Emulator, RunsThreadsInAnotherOrderForEachSeed) {
  const auto order_of = [](uint32_t seed) {
    std::vector<int> order;
    play(1, 32, [&] { order.push_back(thread_index()); }, {.seed = seed});
    return order;
  };
  EXPECT_NE(order_of(1), order_of(2));
  EXPECT_EQ(order_of(1), order_of(1));
}

// The neighbour's value, by way of shared memory that is undefined at first in each block.
void shift(std::vector<float>& out) {
  GPU_SHARED(float, values, 64);
  const int thread = thread_index();
  EXPECT_TRUE(std::isnan(values[thread]));
  values[thread] = static_cast<float>(thread);
  gpu::sync_block();
  out[static_cast<size_t>(block_index() * 64 + thread)] = values[(thread + 1) % 64];
}

TEST(Emulator, KeepsWhatABlockSharesAndItsBarriers) {
  std::vector<float> out(2 * 64);
  const auto barriers = play(2, 64, [&] { shift(out); });
  ASSERT_EQ(barriers.size(), 1U);
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<float>((i % 64 + 1) % 64));
  }
  play(2, 64, [&] { shift(out); }, {.without = *barriers.begin()});
  EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](float value) { return std::isnan(value); }));
}

TEST(Emulator, ShufflesWithinAWarp) {
  std::vector<float> out(64);
  play(1, 64, [&] {
    const auto thread = static_cast<float>(thread_index());
    out[static_cast<size_t>(thread_index())] = gpu::shuffle_xor(thread, 3);
  });
  for (int thread = 0; thread < 64; ++thread) {
    EXPECT_EQ(out[static_cast<size_t>(thread)], static_cast<float>(thread ^ 3));
  }
}

std::string fault_of(const std::function<void()>& body) {
  try {
    play(1, 64, body);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulator, NamesABarrierThatNotAllThreadsReach) {
  const auto some = [] {
    if (thread_index() < 40) {
      gpu::sync_block();
    }
  };
  EXPECT_THAT(fault_of(some), HasSubstr("a barrier that not all threads reach: "));
  const auto some_elsewhere = [] {
    if (thread_index() < 40) {
      gpu::sync_block();
    } else {
      gpu::sync_block();
    }
  };
  EXPECT_THAT(fault_of(some_elsewhere), HasSubstr("threads wait at different barriers"));
  const auto half_a_warp = [] {
    if (thread_index() % 2 == 0) {
      static_cast<void>(gpu::shuffle_xor(1.0F, 2));
    }
  };
  EXPECT_THAT(fault_of(half_a_warp), HasSubstr("not all threads reach"));
}

TEST(Emulator, StopsWhereSixteenBytesAreNotAligned) {
  struct alignas(16) Four {
    float values[4];
  };
  const std::vector<float> from(64, 3);
  std::vector<float> to(64);
  const auto copy = [&](size_t first) {
    play(1, 32, [&, first] {
      if (thread_index() == 7) {
        gpu::store_16_bytes(&to[first], gpu::load_16_bytes<Four>(from.data()));
      }
    });
  };
  copy(4);
  EXPECT_EQ(to[7], 3);
  EXPECT_THROW(copy(6), std::logic_error);
}

void copy_one(const float* from, float* to) {
  const int thread = thread_index();
  gpu::store_value(to + thread, gpu::load_value(from + thread) + gpu::load_for_warp(from));
}

TEST(Emulator, CountsTheBytesOfEachKernel) {
  const std::vector<float> from(64);
  std::vector<float> to(64);
  static_cast<void>(take_traffic());
  gpu::launch<64>("first", nullptr, 1, &copy_one, from.data(), to.data());
  gpu::launch<64>("second", nullptr, 1, &copy_one, from.data(), to.data());
  gpu::launch<32>("second", nullptr, 2, &copy_one, from.data(), to.data());
  const auto moved = take_traffic();
  EXPECT_EQ(moved.size(), 2U);
  EXPECT_EQ(moved.at("first"), (Traffic{64 * 4 + 2 * 4, 64 * 4}));
  EXPECT_EQ(moved.at("second"), (Traffic{128 * 4 + 4 * 4, 128 * 4}));
  EXPECT_TRUE(take_traffic().empty());
}

// As on a GPU, whose runtime reports the fault of an earlier kernel at the next launch.
TEST(Emulator, ALaunchThatFailsIsAnErrorThatNamesItsKernel) {
  const std::vector<float> from(32);
  std::vector<float> to(32);
  const auto launch = [&] {
    gpu::launch<32>("copy_one", nullptr, 1, &copy_one, from.data(), to.data());
  };
  fail_next_launch("an illegal memory access was encountered");
  try {
    launch();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Internal);
    EXPECT_STREQ(error.what(),
                 "CUDA reported \"an illegal memory access was encountered\" when the kernel "
                 "copy_one was launched. An earlier kernel may have caused it: run again with "
                 "CUDA_LAUNCH_BLOCKING=1 to find the kernel at fault.");
  }
  EXPECT_NO_THROW(launch());
}

}  // namespace
}  // namespace sherd::emulator
