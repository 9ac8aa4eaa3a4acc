// What is known of a run's export before the run.

#include "llm/export/export_run.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "llm/io/export.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::exports {
namespace {

namespace fs = std::filesystem;
using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;

const std::string kModel = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

config::RunConfig exporting(const std::string& model, config::ExportOf what) {
  config::RunConfig config;
  config.model.path = model;
  config.checkpoint.export_of = what;
  return config;
}

TEST(ExportOfARun, TakesItsWeightsAndWhatIsCopied) {
  const setup::ModelShape shape = setup::model_shape(kModel);
  EXPECT_EQ(export_bytes(exporting(kModel, config::ExportOf::None), shape), 0);
  EXPECT_EQ(export_bytes(exporting(kModel, config::ExportOf::End), shape),
            shape.parameters * 4 + io::copied_bytes(kModel));
}

TEST(ExportOfARun, ThatWouldFailAtTheEndIsRefusedBeforeTheRun) {
  const TempFolder folder;
  const fs::path model = folder.path() / "model";
  fs::copy(kModel, model);
  const setup::ModelShape shape = setup::model_shape(model.string());
  fs::create_symlink("/etc/passwd", model / "NOTICE");
  expect_error(
      [&] {
        static_cast<void>(export_bytes(exporting(model.string(), config::ExportOf::Best), shape));
      },
      ExitCode::BadData, {"NOTICE: links to /etc/passwd"});
}

TEST(ExportOfARun, IsNotThereWhereNoEvaluationIsTheBest) {
  const TempFolder folder;
  config::RunConfig config = exporting(kModel, config::ExportOf::Best);
  config.train.output = folder.path().string();
  config.eval.best_by = config::BestBy::F1;
  std::string said;
  sherd::World world = sherd::World::alone();
  EXPECT_TRUE(export_run(
      config, "", std::nullopt, world, [] { return false; },
      [&](const std::string& line) { said += line; }));
  EXPECT_NE(said.find("nothing is exported: no evaluation after a step has a finite f1"),
            std::string::npos)
      << said;
}

// Also where it leads nowhere.
TEST(ExportOfARun, ReplacesNoLink) {
  const TempFolder folder;
  config::RunConfig config = exporting(kModel, config::ExportOf::End);
  config.train.output = folder.path().string();
  EXPECT_NO_THROW(require_place_of_export(config));
  fs::create_symlink("/nowhere", folder.path() / "export");
  expect_error([&] { require_place_of_export(config); }, ExitCode::CannotWrite,
               {"export' exists and was not written by a run"});
}

}  // namespace
}  // namespace llm::exports
