// A state of 3 GiB is trained within 1 GiB, to the bits of one that lies in memory.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/memory_limit.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

constexpr int kLayers = 10;
constexpr int64_t kWidth = 3072;  // 189 million parameters, of 18 bytes each
constexpr int kSteps = 3;
constexpr int64_t kLimitBytes = int64_t{1} << 30;

struct Losses {
  double of_step[kSteps] = {};
  int64_t offloaded_bytes = 0;
};

at::Tensor random_rows(uint64_t seed, int64_t width) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn({4, width}, generator);
}

// Parameters, gradients, masters and moments rest in the folder.
Losses train(const std::string& folder) {
  auto model = fully_shard(
      on_meta([] { return Net(kLayers, kWidth); }), Mesh::shard(World::alone()),
      {.precision = {.param_dtype = at::kBFloat16},
       .offload = {
           .optimizer_folder = folder, .gradient_folder = folder, .parameter_folder = folder}});
  AdamW optimizer(model, {.lr = 1e-4});
  initialize(model, 3, [](ParameterInit& parameter) { parameter.fill_normal(0, 0.01); });
  Losses losses;
  losses.offloaded_bytes = model.memory().offloaded_bytes();
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss =
        at::mse_loss(model(random_rows(1, 5)).to(at::kFloat), random_rows(2, 3));
    losses.of_step[step] = loss.item<double>();
    loss.backward();
    clip_grad_norm(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

// In a process of its own, with a limit of all memory.
int train_limited(const MemoryLimit& limit, const std::string& folder, Losses& result) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      limit.enter();
      const Losses found = train(folder);
      code = ::write(ends[1], &found, sizeof found) == sizeof found ? 0 : 1;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  ::close(ends[1]);
  const bool answered = ::read(ends[0], &result, sizeof result) == sizeof result;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(answered || status != 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(LessMemory, TrainsThreeTimesTheStateThatMemoryHolds) {
  const TempFolder folder;
  const MemoryLimit limit(kLimitBytes);
  std::printf("limited by %s\n", limit.name().c_str());
  Losses limited;
  ASSERT_EQ(train_limited(limit, folder.path().string(), limited), 0);
  EXPECT_GT(limited.offloaded_bytes, 3 * kLimitBytes - (int64_t{100} << 20));
  Losses refused;
  EXPECT_EQ(train_limited(limit, "", refused),
            limit.code_beyond(static_cast<int>(ExitCode::OutOfMemory)));
  const Losses plain = train("");
  EXPECT_EQ(plain.offloaded_bytes, 0);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(limited.of_step[step], plain.of_step[step]) << step;
  }
  EXPECT_LT(plain.of_step[kSteps - 1], plain.of_step[0]);
}

}  // namespace
}  // namespace sherd::test
