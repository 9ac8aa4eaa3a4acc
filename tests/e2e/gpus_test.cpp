// What the program says of GPUs that it cannot use, with a driver that says what the test wants
// (tests/fake_driver): a machine without one has none of these.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

const std::string kFolder = SHERD_TEST_BINARY_DIR "/tests/fake_driver/";
const std::string kDriver = kFolder + "driver";
const std::string kDriverAndLibrary = kDriver + ":" + kFolder + "library";

Arguments one_step(const fs::path& output) {
  return {"train",
          "recipes/stories260k-squad-32.toml",
          "--train.output",
          output.string(),
          "--train.max_steps",
          "1",
          "--eval.at_end",
          "false"};
}

Ended train_with(const std::string& libraries, Arguments variables, const Arguments& more = {}) {
  const TempFolder folder;
  variables.push_back("LD_LIBRARY_PATH=" + libraries);
  return Program(one_step(folder.path() / "run") + more, variables).finish();
}

struct Case {
  int code;
  std::string libraries;
  Arguments variables;
  std::vector<std::string> parts;
};

void expect_refused(const Case& wanted, const Arguments& more) {
  const Ended ended = train_with(wanted.libraries, wanted.variables, more);
  EXPECT_EQ(ended.code, wanted.code) << ended.err;
  for (const std::string& part : wanted.parts) {
    EXPECT_THAT(ended.err, testing::HasSubstr(part));
  }
}

TEST(NoGpu, IsRefusedByNameWhereOneIsAskedFor) {
  const Arguments cuda = {"--device.kind", "cuda"};
  if (std::filesystem::exists("/dev/nvidiactl")) {
    GTEST_SKIP() << "SKIPPED: this machine has a driver";
  }
  expect_refused({69, "/nowhere", {}, {"device.kind is \"cuda\"", "there is no NVIDIA driver"}},
                 cuda);
  expect_refused({69,
                  kDriver,
                  {"FAKE_CUDA_VERSION=12040"},
                  {"too old", "made for CUDA 12.4", "needs 13.0", "driver 580"}},
                 cuda);
  expect_refused({69,
                  kDriver,
                  {"FAKE_GPUS=0", "CUDA_VISIBLE_DEVICES="},
                  {"shows no GPU", "CUDA_VISIBLE_DEVICES is ''"}},
                 cuda);
  expect_refused({69, kDriver, {"FAKE_INIT=100"}, {"shows no GPU"}}, cuda);
  expect_refused(
      {69, kDriver, {"FAKE_INIT=803"}, {"does not start: as the test wants it (CUDA's error 803)"}},
      cuda);
  expect_refused({69, kDriver, {}, {"no part for GPUs that can be loaded", "libsherd_cuda.so"}},
                 cuda);
  expect_refused({69,
                  kDriverAndLibrary,
                  {"FAKE_CAPABILITY=70"},
                  {"GPU 0 (Fake GPU, GPU-00", "compute capability 7.0", "CUDA 12.6"}},
                 cuda);
  expect_refused({69,
                  kDriverAndLibrary,
                  {"FAKE_CUDA_NOT_FOUND=1"},
                  {"LibTorch was asked for GPUs before Sherd", "before torch::manual_seed()"}},
                 cuda);
}

TEST(NoGpu, IsRefusedWhereItIsTakenOrTooFew) {
  expect_refused({69, kDriverAndLibrary, {"FAKE_RETAIN=46"}, {"GPU 0", "is in use", "nvidia-smi"}},
                 {});
  expect_refused({81, kDriverAndLibrary, {"FAKE_RETAIN=2"}, {"GPU 0", "no memory left"}}, {});
  expect_refused({69, kDriverAndLibrary, {"FAKE_RETAIN=999"}, {"cannot be used", "error 999"}}, {});
  expect_refused({64,
                  kDriverAndLibrary,
                  {"FAKE_GPUS=2"},
                  {"3 ranks on this host, and 2 GPUs", "-n 2", "--device.kind cpu"}},
                 {"-n", "3", "--train.global_batch", "12"});
  expect_refused({64, kDriverAndLibrary, {"FAKE_CAPABILITY=75"}, {"bfloat16", "Fake GPU", "7.5"}},
                 {"--precision.param_dtype", "bfloat16"});
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

// Before anything is allocated there: what LibTorch does not initialise by itself, once. The
// library that is played has no memory, so that the run ends with the first allocation.
TEST(PlayedGpu, IsInitialisedBeforeTheFirstAllocation) {
  const TempFolder folder;
  const fs::path notes = folder.path() / "notes";
  const Ended ended = train_with(kDriverAndLibrary, {"FAKE_CUDA_NOTES=" + notes.string()},
                                 {"--device.kind", "cuda"});
  EXPECT_NE(ended.code, 0);
  EXPECT_EQ(lines_of(notes), (std::vector<std::string>{"CUDA", "GPU 0"})) << ended.err;
}

// Asked for GPUs alone, no GPU is made anybody's.
TEST(PlayedGpu, IsNotTakenByThoseWhoOnlyLook) {
  const TempFolder folder;
  const fs::path notes = folder.path() / "notes";
  const Ended ended = Program({"doctor"}, {"LD_LIBRARY_PATH=" + kDriverAndLibrary,
                                           "FAKE_CUDA_NOTES=" + notes.string()})
                          .finish();
  EXPECT_THAT(lines_of(notes), testing::Each("CUDA")) << ended.err;
}

TEST(NoGpu, IsRefusedWhereLibTorchCannotInitialiseIt) {
  expect_refused(
      {69,
       kDriverAndLibrary,
       {"FAKE_CUDA_INITIALIZE=0"},
       {"LibTorch cannot use the GPUs that the driver shows: CUDA error: the test has it so",
        "nvidia-smi"}},
      {"--device.kind", "cuda"});
}

// Nothing ends the thread that waits in NCCL for rank 1, nor may the process's end disturb it.
TEST(NoGpu, EndsWithItsCodeWhileAThreadWaitsInNccl) {
  const TempFolder folder;
  const std::string port = std::to_string(launch::listen_on_loopback({}).port);
  const auto start = [&](const std::string& rank) {
    return Program(
        one_step(folder.path() / "run") + Arguments{"--device.kind", "cuda"},
        {"LD_LIBRARY_PATH=" + kDriverAndLibrary, "FAKE_GPUS=2", "RANK=" + rank,
         "LOCAL_RANK=" + rank, "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
         "MASTER_PORT=" + port, "FAKE_CUDA_NOTES=" + (folder.path() / ("notes " + rank)).string()});
  };
  Program one = start("1"), zero = start("0");
  for (const Ended& ended : {zero.finish(), one.finish()}) {
    EXPECT_EQ(ended.code, 69) << ended.err;
    EXPECT_THAT(ended.err, testing::HasSubstr("cannot be connected over NCCL. On rank 1"));
  }
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(lines_of(folder.path() / ("notes " + rank)),
              (std::vector<std::string>{"CUDA", "GPU " + rank}));
  }
}

TEST(NoGpu, StopsNobodyWhoDoesNotAskForOne) {
  const Ended on_cpu = train_with(kDriver, {}, {"--device.kind", "cpu"});
  EXPECT_EQ(on_cpu.code, 0) << on_cpu.err;
  EXPECT_THAT(on_cpu.err, testing::Not(testing::HasSubstr("GPU")));
  const Ended by_itself = train_with(kDriver, {});
  EXPECT_EQ(by_itself.code, 0) << by_itself.err;
  EXPECT_THAT(by_itself.err, testing::HasSubstr("computing on the CPU: this Sherd has no part for "
                                                "GPUs that can be loaded"));
}

}  // namespace
}  // namespace sherd::test
