// A run that is killed leaves no part of a Hugging Face folder.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

// The process is gone in the middle of the export.
TEST(RunExport, ThatIsKilledIsMadeByTheNextRun) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path model = wide_bloom(folder.path() / "model");
  auto config = nlohmann::json::parse(read_file(model / "config.json"));
  config["hidden_size"] = 256;  // 6 million parameters: some time to write, not much
  std::ofstream(model / "config.json") << config;
  Arguments run =
      train(output, "1") +
      Arguments{"--checkpoint.export", "end", "--model.init", "random", "--train.micro_batch", "1"};
  std::replace(run.begin(), run.end(), kModel, model.string());
  Program first(run);
  first.wait_for("summary:");
  first.signal(SIGKILL);
  first.finish();
  const bool whole = fs::exists(output / "export/config.json");
  EXPECT_EQ(fs::exists(output / "export"), whole);  // whole where it was quicker than the signal
  expect_code(0, run);
  EXPECT_TRUE(read_file(output / "export/model.safetensors") == exported_weights(output));
}

}  // namespace
}  // namespace sherd::test
