// What rests on a disk: the same run, in less memory, that leaves nothing there.

#include "tests/in_process/run_program.h"
#include "tests/support/small_disk.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Offload, TrainsToTheSameBitsAndLeavesNothing) {
  const TempFolder folder;
  const fs::path disk = folder.path() / "disk";
  expect_code(0, on_ranks(2, in_bf16(folder.path() / "plain")));
  const Ended ended = expect_code(0, on_ranks(2, in_bf16(folder.path() / "run") + on_disk(disk)));
  EXPECT_THAT(ended.out,
              HasSubstr("on the disk: masters and moments in '" + disk.string() + "', "));
  EXPECT_THAT(ended.out, HasSubstr(" per rank, moved by "));
  expect_same(folder.path() / "run", folder.path() / "plain");
  EXPECT_THAT(listing(disk), IsEmpty());
}

TEST(Offload, ToADiskThatIsTooSmallEndsBeforeTheFirstStep) {
  const TempFolder folder;
  const SmallDisk disk(folder.path() / "small");
  if (!disk.is_there()) {
    GTEST_SKIP() << SmallDisk::kWhyNot;
  }
  const Ended ended = expect_code(73, in_bf16(folder.path() / "run") + on_disk(disk.path()));
  EXPECT_THAT(ended.err, HasSubstr("no room for offloading to '" + disk.path().string() + "'"));
  EXPECT_THAT(ended.err, HasSubstr("choose a folder on another disk"));
  EXPECT_THAT(read_log(folder.path() / "run" / "log.jsonl"), IsEmpty());
}

TEST(Offload, ToWhatIsNoFolder) {
  const TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  const Ended ended =
      expect_code(73, in_bf16(folder.path() / "run") + on_disk(folder.path() / "file"));
  EXPECT_THAT(ended.err, HasSubstr("the folder for offloading, '" +
                                   (folder.path() / "file").string() + "', cannot be created: "));
  EXPECT_THAT(ended.err, HasSubstr("(memory.offload, ShardOptions::offload)"));
}

TEST(Offload, ToADiskThatIsTooSmallDoesNotFit) {
  const TempFolder folder;
  const SmallDisk disk(folder.path() / "small");
  if (!disk.is_there()) {
    GTEST_SKIP() << SmallDisk::kWhyNot;
  }
  Arguments words = in_bf16(folder.path() / "run") + on_disk(disk.path() / "not there yet");
  words.front() = "plan";
  const Ended planned = expect_code(1, words);
  EXPECT_THAT(planned.out, HasSubstr("; 0 MiB are free"));
  EXPECT_THAT(planned.out, HasSubstr("does not fit: one rank stores 3 MiB "));
  EXPECT_THAT(planned.out, HasSubstr(" on a disk with 0 MiB free"));
}

// Told before anything is computed or loaded.
TEST(Offload, GoesWithGraphsOfTheOptimizerAlone) {
  const TempFolder folder;
  const auto planned = [&](int code, const Arguments& more) {
    Arguments words = in_bf16(folder.path() / "run") +
                      Arguments{"--device", "h100-80g", "--device.cuda_graphs", "true"} + more;
    words.front() = "plan";
    return expect_code(code, words);
  };
  EXPECT_THAT(planned(0, on_disk(folder.path())).out, HasSubstr("memory of graphs"));
  for (const std::string part : {"gradients", "parameters", "activations"}) {
    EXPECT_THAT(planned(64, {"--memory.offload." + part, "host"}).err,
                HasSubstr("device.cuda_graphs is given, and the host moves what memory.offload." +
                          part + " names: leave one of them out"));
  }
  EXPECT_THAT(
      expect_code(64, in_bf16(folder.path() / "run") + Arguments{"--device.cuda_graphs", "true"})
          .err,
      HasSubstr("computes on the CPU, which keeps no graphs"));
}

TEST(Offload, OfABenchIsNamedAsInRecipes) {
  const TempFolder folder;
  const auto offloaded_bytes = [&](const std::string& place) {
    const Ended ended = expect_code(0, {"bench", "--model", kModel, "--seq", "16", "--steps", "0",
                                        "--warmup", "1", "--json", "--offload-optimizer", place});
    return nlohmann::json::parse(ended.out)["offloaded_bytes"].get<std::int64_t>();
  };
  const std::string disk = (folder.path() / "disk").string();
  EXPECT_GT(offloaded_bytes("disk:" + disk), 8 * 260'000);
  EXPECT_EQ(offloaded_bytes("disk:" + disk), offloaded_bytes(disk));
  EXPECT_EQ(offloaded_bytes("none"), 0);
}

TEST(Offload, ToWhatIsNotThere) {
  const TempFolder folder;
  const auto refused = [&](const std::string& key, const std::string& place) {
    return expect_code(64,
                       train(folder.path() / "run") + Arguments{"--memory.offload." + key, place})
        .err;
  };
  for (const char* part : {"optimizer", "gradients", "parameters"}) {
    EXPECT_THAT(refused(part, "disk:"), HasSubstr("must be \"none\", \"host\" or \"disk:FOLDER\""));
  }
  EXPECT_THAT(refused("activations", "disk:/tmp"), HasSubstr("must be one of \"none\", \"host\""));
}

// All of its memory is the host's.
TEST(Offload, ToTheHostOfACpu) {
  const TempFolder folder;
  const auto refused = [&](const std::string& key) {
    return expect_code(64,
                       train(folder.path() / "run") + Arguments{"--memory.offload." + key, "host"})
        .err;
  };
  for (const std::string part : {"optimizer", "gradients", "parameters"}) {
    EXPECT_THAT(refused(part),
                HasSubstr("memory.offload." + part +
                          " = \"host\" is for GPUs, and on a CPU all memory is the host's: leave "
                          "it \"none\", or choose \"disk:FOLDER\""));
  }
  EXPECT_THAT(refused("activations"), HasSubstr("set memory.activation_checkpointing"));
}

TEST(Offload, IsPlanned) {
  const TempFolder folder;
  const auto plan = [&](const Arguments& more) {
    Arguments words = in_bf16(folder.path() / "run") + more + Arguments{"--json"};
    words.front() = "plan";
    return nlohmann::json::parse(expect_code(0, words).out);
  };
  const auto plain = plan({});
  const auto offloaded = plan(on_disk(folder.path() / "never made"));
  EXPECT_EQ(plain["offloaded_bytes"], 0);
  EXPECT_GT(offloaded["offloaded_bytes"], 12 * 260'000);
  EXPECT_FALSE(offloaded["phases"]["save"]["items"].contains("optimizer state"));
  EXPECT_GT(offloaded["phases"]["optimizer"]["items"]["slots of what is offloaded"],
            12 * 260'000 / 2);
  const auto all = plan(all_on_disk(folder.path() / "never made"));
  EXPECT_GT(all["offloaded_bytes"], 18 * 260'000);
  for (const char* item : {"optimizer state", "travelling shards", "gradient shards"}) {
    EXPECT_TRUE(plain["phases"]["backward"]["items"].contains(item)) << item;
    EXPECT_FALSE(all["phases"]["backward"]["items"].contains(item)) << item;
  }
  EXPECT_FALSE(fs::exists(folder.path() / "never made"));
}

// It comes through the host.
TEST(Offload, ToADiskIsPlannedForGpus) {
  const TempFolder folder;
  const auto plan = [&](const Arguments& more) {
    Arguments words = in_bf16(folder.path() / "run") + on_disk(folder.path()) +
                      Arguments{"--device", "h100-80g"} + more;
    words.front() = "plan";
    return expect_code(0, words).out;
  };
  EXPECT_THAT(plan({}),
              AllOf(HasSubstr("\non the disk: "), HasSubstr("\npages of the host: at most "),
                    HasSubstr("GB/s each way between a GPU and its host"),
                    Not(HasSubstr("pinned on the host"))));
  const auto planned = nlohmann::json::parse(plan({"--json"}));
  EXPECT_GT(planned["offloaded_bytes"], 12 * 260'000);
  EXPECT_GT(planned["page_bytes"], 0);
  EXPECT_EQ(planned["host_bytes"], 0);
  const auto& items = planned["phases"]["backward"]["items"];
  EXPECT_FALSE(items.contains("optimizer state"));
  EXPECT_TRUE(items.contains("slots of what is offloaded"));
}

// What the host holds, and what the GPU then does not.
TEST(Offload, ToTheHostIsPlannedForGpus) {
  const TempFolder folder;
  const auto plan = [&](const Arguments& more) {
    Arguments words =
        in_bf16(folder.path() / "run") + more + Arguments{"--device", "h100-80g", "--json"};
    words.front() = "plan";
    return nlohmann::json::parse(expect_code(0, words).out);
  };
  const auto plain = plan({});
  EXPECT_EQ(plain["host_bytes"], 0);
  const auto offloaded = plan({"--memory.offload.optimizer", "host"});
  EXPECT_GT(offloaded["host_bytes"], 12 * 260'000);
  EXPECT_FALSE(offloaded["phases"]["backward"]["items"].contains("optimizer state"));
  EXPECT_FALSE(offloaded["phases"]["backward"]["items"].contains("master shards"));
  EXPECT_EQ(offloaded["phases"]["backward"]["items"]["slots of what is offloaded"],
            offloaded["phases"]["forward"]["items"]["slots of what is offloaded"]);
  const auto all = plan({"--memory.offload.optimizer", "host", "--memory.offload.gradients", "host",
                         "--memory.offload.parameters", "host"});
  EXPECT_GT(all["host_bytes"], 18 * 260'000);
  for (const char* item : {"travelling shards", "gradient shards"}) {
    EXPECT_TRUE(offloaded["phases"]["backward"]["items"].contains(item)) << item;
    EXPECT_FALSE(all["phases"]["backward"]["items"].contains(item)) << item;
  }
}

}  // namespace
}  // namespace sherd::test
