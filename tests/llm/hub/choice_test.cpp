#include "llm/hub/choice.h"

#include "llm/hub/weight_index.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::hub {
namespace {

using sherd::test::expect_error;
using sherd::test::TempFolder;
using testing::ElementsAre;

std::vector<HubFile> files_of(const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) {
    files.push_back({path, 1, {}});
  }
  return files;
}

const Repo kModelRepo{RepoKind::Model, "org/name"};

TEST(Choice, TakesWhatARunReadsAndConfigLast) {
  const auto files =
      files_of({"config.json", ".gitattributes", "LICENSE.txt", "README.md", "chat_template.jinja",
                "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                "model-00001-of-00003.safetensors", "weights.safetensors",
                "model.safetensors.index.json", "onnx/model.onnx", "original/consolidated.00.pth",
                "pytorch_model.bin", "tokenizer.json", "other/config.json", "model.safetensors"});
  const Choice choice = choose_model_files(
      kModelRepo, files, {"model-00001-of-00002.safetensors", "weights.safetensors"});
  std::vector<std::string> paths;
  for (const HubFile& file : choice.files) {
    paths.push_back(file.path);
  }
  EXPECT_THAT(paths, ElementsAre("LICENSE.txt", "README.md", "chat_template.jinja",
                                 "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                 "weights.safetensors", "tokenizer.json", "config.json"));
  EXPECT_THAT(choice.pickles, ElementsAre("original/consolidated.00.pth", "pytorch_model.bin"));
}

TEST(Choice, RefusesAModelWithoutAllItsWeights) {
  const auto files = files_of({"config.json", "tokenizer.json", "model-1.safetensors"});
  expect_error(
      [&] {
        static_cast<void>(
            choose_model_files(kModelRepo, files, {"model-1.safetensors", "model-2.safetensors"}));
      },
      sherd::ExitCode::BadData,
      {"org/name has no model-2.safetensors, which its model.safetensors.index.json names"});
  expect_error([&] { static_cast<void>(choose_model_files(kModelRepo, files, {})); },
               sherd::ExitCode::BadData, {"org/name has no model.safetensors"});
}

TEST(WeightIndex, NamesTheFilesOfAllTensors) {
  const TempFolder folder;
  EXPECT_THAT(
      weight_files(folder.write("i", R"({"weight_map": {"a": "y.safetensors", "b": "x.safetensors",
                                          "c": "y.safetensors"}})")),
      ElementsAre("x.safetensors", "y.safetensors"));
}

TEST(WeightIndex, RefusesWhatIsNone) {
  const TempFolder folder;
  const auto refused = [&](const std::string& content, const std::string& why) {
    const auto file = folder.write("index", content);
    expect_error([&] { static_cast<void>(weight_files(file)); }, sherd::ExitCode::BadData,
                 {file.string(), why});
  };
  refused("[1]", "no object 'weight_map'");
  refused(R"({"weight_map": {}})", "with tensors in it");
  refused(R"({"weight_map": {"a": 7}})", "is not a string");
  refused(R"({"weight_map": {"a": "pytorch_model.bin"}})", "is not a safetensors file next to it");
  refused(R"({"weight_map": {"a": "../x.safetensors"}})", "is not a safetensors file next to it");
}

}  // namespace
}  // namespace llm::hub
