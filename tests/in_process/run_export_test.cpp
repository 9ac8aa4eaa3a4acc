// A run leaves a Hugging Face folder at its end.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Both folders hold the same files, bit by bit.
void expect_same_folders(const fs::path& left, const fs::path& right) {
  auto names = listing(left);
  EXPECT_THAT(listing(right), testing::UnorderedElementsAreArray(names));
  for (const std::string& name : names) {
    EXPECT_TRUE(read_file(left / name) == read_file(right / name)) << name;
  }
}

TEST(RunExport, OfTheEndIsWhatSherdExportMakes) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = on_ranks(2, train(output, "2")) +
                        Arguments{"--train.micro_batch", "6", "--checkpoint.export", "end"};
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("exported " + output.string()));
  const fs::path by_hand = folder.path() / "hf";
  expect_code(0, {"export", "--checkpoint", output, "--out", by_hand});
  expect_same_folders(output / "export", by_hand);
  EXPECT_TRUE(fs::exists(output / "export/LICENSE"));

  // Made once; made again where it is gone, or where a killed run left a part of it.
  EXPECT_THAT(expect_code(0, run).out, Not(HasSubstr("exported")));
  fs::remove_all(output / "export");
  fs::create_directory(output / "export.tmp");
  std::ofstream(output / "export.tmp/model.safetensors") << "half";
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("exported"));
  expect_same_folders(output / "export", by_hand);
  EXPECT_FALSE(fs::exists(output / "export.tmp"));
}

// What the format is called does not matter: the same conversation in another form gives the same
// run, and an export with the same template and stop tokens.
TEST(RunExport, OfMessagesInPromptAndCompletionIsThatOfChat) {
  const TempFolder folder;
  using nlohmann::json;
  const json asks = json::array({{{"role", "user"}, {"content", "Who is it?"}}});
  const json answers = json::array({{{"role", "assistant"}, {"content", "It is Lily."}}});
  const json chat = {{"messages", json::array({asks[0], answers[0]})}};
  const json pair = {{"prompt", asks}, {"completion", answers}};
  const auto run_on = [&](const std::string& name, const json& record, const Arguments& flags) {
    const fs::path data = folder.write(name + ".jsonl", record.dump() + "\n" + record.dump());
    const fs::path output = folder.path() / name;
    expect_code(0, on_ranks(2, train_on(data, output, "60")) +
                       Arguments{"--data.chat_template", "zephyr", "--optim.lr", "3e-3",
                                 "--checkpoint.export", "end"} +
                       flags);
    return output;
  };
  const fs::path expected = run_on("chat", chat, {});
  EXPECT_TRUE(fs::exists(expected / "export/chat_template.jinja"));
  EXPECT_THAT(read_file(expected / "export/generation_config.json"), HasSubstr("eos_token_id"));
  for (const std::string format : {"prompt_completion", "jsonl", "auto"}) {
    const fs::path output = run_on(format, pair, {"--data.train[0].format", format});
    expect_same_folders(output / "export", expected / "export");
    for (const fs::path& asked : {output, output / "export"}) {
      const Ended ended =
          expect_code(0, {"generate", asked, "--prompt", "Who is it?", "--max-new-tokens", "20"});
      EXPECT_EQ(ended.out, "It is Lily.\n");
      EXPECT_THAT(ended.err, HasSubstr("prompts get the chat template"));
    }
  }
}

TEST(RunExport, OfTheBestIsThatCheckpoint) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = evaluated(output, "3", "1 steps") + kFirstIsBest +
                        Arguments{"--checkpoint.every", "never", "--optim.lr", "1e-2"};
  // Without its checkpoint there is nothing to export.
  expect_code(0, run);
  const Arguments best = {"--checkpoint.export", "best"};
  EXPECT_THAT(expect_code(66, run + best).err,
              HasSubstr("there is no checkpoint of the best evaluation, em 0.0 at step 1"));
  EXPECT_FALSE(fs::exists(output / "export"));

  expect_code(0, run + best + Arguments{"--resume", "overwrite"});
  const fs::path checkpoints = output / "checkpoints";
  const std::string exported = read_file(output / "export/model.safetensors");
  EXPECT_TRUE(exported == exported_weights(checkpoints / "step-00000001"));
  EXPECT_FALSE(exported == exported_weights(checkpoints / "step-00000003"));
}

// What cannot be copied at the end is refused before weights are read.
TEST(RunExport, ThatCannotBeMadeEndsTheRunAtItsStart) {
  const TempFolder folder;
  const fs::path model = copy_of_model(folder.path() / "model");
  fs::create_symlink("/etc/passwd", model / "NOTICE");
  const fs::path output = folder.path() / "run";
  Arguments run = on_ranks(2, train(output, "1") + Arguments{"--train.micro_batch", "6"});
  std::replace(run.begin(), run.end(), kModel, model.string());
  const Ended ended = expect_code(65, run + Arguments{"--checkpoint.export", "end"});
  EXPECT_THAT(ended.err, HasSubstr("NOTICE: links to /etc/passwd, outside of its folder"));
  EXPECT_FALSE(fs::exists(output / "checkpoints"));
  expect_code(0, run);
}

TEST(RunExport, ReplacesNoFolderOfTheUsers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  fs::create_directories(output / "export");
  std::ofstream(output / "export/thesis.txt") << "text";
  const Ended ended = expect_code(73, train(output, "1") + Arguments{"--checkpoint.export", "end"});
  EXPECT_THAT(ended.err, HasSubstr("export' exists and was not written by a run"));
  EXPECT_EQ(read_file(output / "export/thesis.txt"), "text");
}

}  // namespace
}  // namespace sherd::test
