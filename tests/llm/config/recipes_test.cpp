// Every recipe is a configuration without a fault.

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/config/recipe_paths.h"
#include "llm/config/run_config.h"
#include "llm/config/sweep_file.h"
#include "tests/support/temp_folder.h"

namespace llm::config {
namespace {

const std::filesystem::path kRecipes = SHERD_TEST_SOURCE_DIR "/recipes";

TEST(Recipes, AllLoadAndWriteToAFolderOfTheirName) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRecipes)) {
    if (entry.path().extension() != ".toml" || is_sweep_file(entry.path())) {
      continue;
    }
    ++recipes;
    const RunConfig config = load(entry.path(), {});
    EXPECT_EQ(config.train.output, "runs/" + entry.path().stem().string());
  }
  EXPECT_GE(recipes, 4);
}

TEST(Recipes, SweepsAreSoundToo) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(SHERD_TEST_SOURCE_DIR);  // where recipes are started
  int sweeps = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRecipes)) {
    if (entry.path().extension() == ".toml" && is_sweep_file(entry.path())) {
      ++sweeps;
      EXPECT_GE(read_sweep(entry.path()).runs.size(), 2) << entry.path();
    }
  }
  std::filesystem::current_path(before);
  EXPECT_GE(sweeps, 4);
}

// What ships together is found together; what a user names himself lies where he is.
TEST(Recipes, NameWhatShipsFromAnyFolder) {
  namespace fs = std::filesystem;
  const sherd::test::TempFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  const std::string source = SHERD_TEST_SOURCE_DIR;
  const RunConfig config = load(kRecipes / "own-data.toml", {});
  EXPECT_EQ(config.model.path, source + "/recipes/models/stories260k");
  EXPECT_EQ(config.data.train[0].path, source + "/recipes/data/general-knowledge.jsonl");
  EXPECT_EQ(config.data.eval[0].path, config.data.train[0].path);
  EXPECT_EQ(load(kRecipes / "bloom-560m-squad.toml", {}).model.path, "bloom-560m");
  const std::vector<std::string> flags = {"--model.path", "recipes/models/stories260k"};
  EXPECT_EQ(load(kRecipes / "own-data.toml", flags).model.path, flags[1]);
  EXPECT_EQ(read_sweep(kRecipes / "fsdp-against-ddp.toml").recipe,
            source + "/recipes/workshop/small-bloom-run.toml");
  EXPECT_EQ(path_in_recipe("recipes/none", kRecipes / "own-data.toml"), "recipes/none");
  EXPECT_EQ(path_in_recipe("recipes/data", folder.path() / "my.toml"), "recipes/data");
  EXPECT_EQ(path_in_recipe("recipes/data/squad-*.json", kRecipes / "own-data.toml"),
            source + "/recipes/data/squad-*.json");
  fs::create_directories("recipes/data");  // what is here comes first
  EXPECT_EQ(path_in_recipe("recipes/data", kRecipes / "own-data.toml"), "recipes/data");
  fs::current_path(before);
}

TEST(Recipes, Bloom560mHasTheWorkshopsSettings) {
  const RunConfig config = load(kRecipes / "bloom-560m-squad.toml", {});
  EXPECT_EQ(config.data.max_length, 512);
  EXPECT_EQ(config.data.train[0].limit, 250);
  EXPECT_EQ(config.data.eval[0].limit, 100);
  EXPECT_TRUE(config.optim.weight_decay_on_norms_and_biases);
  EXPECT_EQ(config.train.epochs, 5);
  EXPECT_EQ(config.train.micro_batch, 1);
  EXPECT_EQ(config.train.global_batch, 4);
  EXPECT_EQ(config.optim.lr, 5e-5);
  EXPECT_EQ(config.optim.weight_decay, 0.01);
}

}  // namespace
}  // namespace llm::config
