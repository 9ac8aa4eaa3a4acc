// What a fault of a disk costs a run: a save, a checkpoint, never more.

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"
#include "tests/support/small_disk.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

fs::path checkpoint(const fs::path& run, int step) {
  const std::string digits = std::to_string(step);
  return run / "checkpoints" / ("step-" + std::string(8 - digits.size(), '0') + digits);
}

// A run of one of the cases, on this many ranks, that has checkpoints after steps 2 and 4.
class WithoutAFile : public testing::Test {
 protected:
  void run_case(const std::string& name, int ranks) {
    const fs::path inputs = kCases + name;
    run_ = on_ranks(ranks, {"train", "--model.path", inputs / "tiny", "--data.train",
                            inputs / "data.jsonl", "--train.output", output(), "--train.epochs",
                            "4", "--checkpoint.every", "2 steps", "--checkpoint.keep", "9"});
    expect_code(0, run_);
    ASSERT_TRUE(fs::exists(checkpoint(output(), 6)));
    for (int step = 5; step <= 8; ++step) {
      fs::remove_all(checkpoint(output(), step));
    }
  }

  // The newest is set aside, and the run goes on from the one before.
  void expect_older_one(const std::string& why) {
    const Ended ended = expect_code(0, run_);
    EXPECT_THAT(ended.out, AllOf(HasSubstr("step-00000004' is damaged: "), HasSubstr(why)));
    EXPECT_THAT(ended.out, HasSubstr("resumed from " + checkpoint(output(), 2).string()));
    EXPECT_TRUE(fs::exists(checkpoint(output(), 4).string() + ".damaged"));
    EXPECT_TRUE(fs::exists(checkpoint(output(), 4) / "manifest.json"));
    EXPECT_TRUE(fs::exists(checkpoint(output(), 8) / "manifest.json"));
  }

  [[nodiscard]] std::string output() const { return folder_.path() / "run"; }
  [[nodiscard]] fs::path shard(const char* name = "shard-00000-of-00001.safetensors") const {
    return checkpoint(output(), 4) / name;
  }
  [[nodiscard]] const fs::path& folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
  Arguments run_;
};

TEST_F(WithoutAFile, ARunGoesOnFromTheCheckpointBefore) {
  run_case("checkpoint-without-a-shard", 1);
  fs::remove(shard());
  expect_older_one("No such file");
}

TEST_F(WithoutAFile, TwoRanksGoOnFromTheCheckpointBefore) {
  run_case("checkpoint-of-two-ranks-without-a-shard", 2);
  fs::remove(shard("shard-00001-of-00002.safetensors"));
  expect_older_one("No such file");
}

TEST_F(WithoutAFile, ALinkThatLeadsNowhereAndAMissingManifestAreTheSame) {
  run_case("checkpoint-without-a-shard", 1);
  fs::remove(shard());
  fs::create_symlink("/no/such/shard", shard());
  expect_older_one("No such file");
  for (int step = 5; step <= 8; ++step) {
    fs::remove_all(checkpoint(output(), step));
  }
  fs::remove(checkpoint(output(), 4) / "manifest.json");
  expect_older_one("it has no manifest.json");
}

TEST_F(WithoutAFile, OtherVerbsTakeTheCheckpointBefore) {
  run_case("checkpoint-without-a-shard", 1);
  fs::remove(shard());
  const std::string taken = "using the older one in '" + checkpoint(output(), 2).string() + "'";
  const std::string data =
      SHERD_TEST_SOURCE_DIR "/tests/data/cases/checkpoint-without-a-shard/data.jsonl";
  const Ended evaluated =
      expect_code(0, on_ranks(2, {"eval", output(), "--data", data, "--loss-only"}));
  EXPECT_THAT(evaluated.out + evaluated.err,
              AllOf(HasSubstr("step-00000004' is damaged: "), HasSubstr(taken)));
  const Ended generated =
      expect_code(0, {"generate", output(), "--prompt", "a", "--raw", "--max-new-tokens", "2"});
  EXPECT_THAT(generated.err, HasSubstr(taken));
  const Ended exported =
      expect_code(0, {"export", "--checkpoint", output(), "--out", folder() / "hf"});
  EXPECT_THAT(exported.out,
              AllOf(HasSubstr(taken), HasSubstr("exported " + checkpoint(output(), 2).string())));
}

// A disk for some checkpoints (3.2 MB each), which another process fills.
class OwnDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.is_there()) {
      GTEST_SKIP() << SmallDisk::kWhyNot;
    }
  }

  void fill() const {
    std::ofstream other(filling(), std::ios::binary | std::ios::app);
    const std::string block(4096, 'x');
    while (other.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  void free() const { fs::remove(filling()); }

  [[nodiscard]] fs::path output() const { return disk_.path() / "run"; }
  [[nodiscard]] Arguments saving_every(const std::string& interval, const std::string& keep,
                                       const std::string& steps) const {
    return train(output(), steps) + Arguments{"--checkpoint.every", interval,
                                              "--checkpoint.keep",  keep,
                                              "--log.every_steps",  "1"};
  }
  TempFolder folder_;
  SmallDisk disk_{folder_.path() / "disk", "size=14m"};

 private:
  [[nodiscard]] fs::path filling() const { return disk_.path() / "other"; }
};

TEST_F(OwnDisk, ThatIsFullForAWhileCostsSavesAndNotTheRun) {
  Program run(on_ranks(2, saving_every("5 steps", "1", "200")) +
              Arguments{"--checkpoint.export", "end", "--train.micro_batch", "6"});
  run.wait_for("checkpoint " + checkpoint(output(), 5).string());
  fill();
  run.wait_for("step 40/");
  free();
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("could not be saved: "), HasSubstr("No space left"),
                               HasSubstr("saves again when the next checkpoint is due")));
  EXPECT_TRUE(fs::exists(checkpoint(output(), 200) / "manifest.json"));
  EXPECT_TRUE(fs::exists(output() / "export/model.safetensors"));
  EXPECT_EQ(column(output(), "loss").size(), 200U);  // no line is lost
  EXPECT_EQ(std::distance(fs::directory_iterator(output() / "checkpoints"), {}), 1);
}

TEST_F(OwnDisk, ThatStaysFullHoldsTheNewestCheckpoints) {
  Program run(on_ranks(2, saving_every("5 steps", "2", "60")) +
              Arguments{"--train.micro_batch", "6"});
  run.wait_for("checkpoint " + checkpoint(output(), 10).string());
  fill();
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("could not be saved")));
  EXPECT_TRUE(fs::exists(checkpoint(output(), 60) / "manifest.json"));
}

TEST_F(OwnDisk, ThatIsFullAtAStopEndsTheRunWith73) {
  Program run(saving_every("5 steps", "1", "4000"));
  run.wait_for("checkpoint " + checkpoint(output(), 5).string());
  fill();
  run.wait_for("step 40/");
  run.signal(SIGTERM);
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 73) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("No space left"), HasSubstr("what was learned in steps "),
                               HasSubstr("is lost"), HasSubstr("start the same command again")));
  ASSERT_EQ(std::distance(fs::directory_iterator(output() / "checkpoints"), {}), 1);
  free();
  const fs::path kept = fs::directory_iterator(output() / "checkpoints")->path();
  Program again(saving_every("5 steps", "1", "4000"));
  again.wait_for("resumed from " + kept.string());
  again.wait_for("checkpoint ");
  again.signal(SIGTERM);
  EXPECT_EQ(again.finish().code, 75);
}

TEST_F(OwnDisk, ThatCannotHoldAllCheckpointsIsRefusedAtTheStart) {
  const Ended ended = expect_code(73, saving_every("1 steps", "4", "20"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("a checkpoint of this model takes 3 MiB"),
                               HasSubstr("up to 5 of them"), HasSubstr("14 MiB free"),
                               HasSubstr("lower checkpoint.keep")));
  EXPECT_FALSE(fs::exists(output()));
  expect_code(0, saving_every("1 steps", "2", "20"));
  expect_code(0, saving_every("1 steps", "2", "20"));  // those that are there count
}

// A file of the user's among checkpoints.
TEST(OtherFiles, InTheFolderOfAStepStay) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const auto keeping = [&](const std::string& keep) {
    return train(output, "4") +
           Arguments{"--checkpoint.every", "1 steps", "--checkpoint.keep", keep};
  };
  const auto thesis = [&](int step) {
    fs::create_directories(checkpoint(output, step));
    std::ofstream(checkpoint(output, step) / "thesis.tex") << "the only copy";
    return (checkpoint(output, step) / "thesis.tex").string();
  };
  const std::string in_the_way = thesis(1);
  EXPECT_THAT(expect_code(73, keeping("9")).err,
              HasSubstr("'" + in_the_way + "' is not part of a checkpoint, and a checkpoint"));
  fs::remove(in_the_way);
  expect_code(0, keeping("9"));

  const std::string kept = thesis(1);
  fs::remove_all(checkpoint(output, 4));
  const Ended pruned = expect_code(0, keeping("2"));
  EXPECT_THAT(pruned.out, HasSubstr("the checkpoint in " + checkpoint(output, 1).string() +
                                    " was removed; its folder stays"));
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_FALSE(fs::exists(checkpoint(output, 1) / "manifest.json"));
  EXPECT_FALSE(fs::exists(checkpoint(output, 2)));

  EXPECT_THAT(expect_code(73, keeping("2") + Arguments{"--resume", "overwrite"}).err,
              HasSubstr(kept));
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_TRUE(fs::exists(checkpoint(output, 4) / "manifest.json"));
}

// Another process cuts the file of tokens that a run has mapped.
TEST(TokenFile, ThatBecomesShorterEndsTheRunWith74) {
  const TempFolder folder;
  Program run(on_ranks(2, train(folder.path() / "run", "4000")) +
              Arguments{"--train.micro_batch", "6", "--log.every_steps", "1", "--data.cache",
                        folder.path() / "cache"});
  run.wait_for("step 2/");
  const fs::path tokens = fs::directory_iterator(folder.path() / "cache")->path();
  fs::resize_file(tokens, 0);
  const Ended ended = run.finish();
  EXPECT_EQ(ended.code, 74) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(tokens.string() + ": became shorter while it was read"));
}

TEST(OutputFolder, OfAKilledRunLosesItsTemporaryFiles) {
  const TempFolder folder;
  fs::create_directory(folder.path() / "run");
  const std::vector<fs::path> ours = {folder.write("run/summary.json.tmp-12", "{"),
                                      folder.write("run/predictions-4.json.tmp-4711", "{")};
  const std::vector<fs::path> others = {folder.write("run/notes.tmp-12", "mine"),
                                        folder.write("run/config.toml.tmp-mine", "mine")};
  expect_code(0, train(folder.path() / "run", "1"));
  for (const fs::path& file : ours) {
    EXPECT_FALSE(fs::exists(file)) << file;
  }
  for (const fs::path& file : others) {
    EXPECT_TRUE(fs::exists(file)) << file;
  }
}

}  // namespace
}  // namespace sherd::test
