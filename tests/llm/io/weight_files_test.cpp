#include "llm/io/weight_files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <nlohmann/json.hpp>

#include "tests/llm/io/model_folders.h"

namespace llm::io {
namespace {

// 40, 40, 400 and 40 bytes.
const std::vector<sherd::SafetensorsSpec> kTensors = {{"z", at::kFloat, {10}},
                                                      {"b", at::kFloat, {2, 5}},
                                                      {"large", at::kFloat, {100}},
                                                      {"a", at::kFloat, {10}}};

void write_all(WeightFiles& files) {
  for (const auto& tensor : kTensors) {
    const at::Tensor values = at::arange(tensor.shape[0] * (tensor.shape.size() == 2 ? 5 : 1));
    const at::Tensor floats = values.to(at::kFloat);
    files.write(tensor.name, floats.narrow(0, 0, 3));
    files.write(tensor.name, floats.narrow(0, 3, floats.numel() - 3));
  }
  files.finish();
}

std::vector<std::string> names_in_folder(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(WeightFiles, AreOneWithinTheLimit) {
  const TemporaryFolder out;
  WeightFiles files(out.path(), kTensors, 520);
  write_all(files);
  EXPECT_EQ(names_in_folder(out.path()), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(files.file_bytes(),
            static_cast<std::int64_t>(std::filesystem::file_size(out / "model.safetensors")));
}

TEST(WeightFiles, AboveTheLimitAreSeveralWithAnIndex) {
  const TemporaryFolder out;
  WeightFiles files(out.path(), kTensors, 100);
  write_all(files);
  EXPECT_EQ(names_in_folder(out.path()),
            (std::vector<std::string>{
                "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  const auto index = nlohmann::json::parse(read_all(out / "model.safetensors.index.json"));
  EXPECT_EQ(index, nlohmann::json::parse(R"({"metadata": {"total_size": 520}, "weight_map": {
    "z": "model-00001-of-00003.safetensors", "b": "model-00001-of-00003.safetensors",
    "large": "model-00002-of-00003.safetensors", "a": "model-00003-of-00003.safetensors"}})"));
  const sherd::SafetensorsFolder folder(out.path());
  for (const auto& tensor : kTensors) {
    const auto found = folder.find(tensor.name);
    ASSERT_TRUE(found) << tensor.name;
    const at::Tensor values = found->file->read(*found->entry);
    EXPECT_EQ(values.sizes(), at::IntArrayRef(tensor.shape));
    EXPECT_TRUE(at::equal(values.reshape({-1}), at::arange(values.numel()).to(at::kFloat)));
    EXPECT_EQ(found->file->metadata().at("format"), "pt");
  }
  std::int64_t bytes = 0;
  for (const sherd::SafetensorsFile& file : folder.files()) {
    bytes += static_cast<std::int64_t>(std::filesystem::file_size(file.path()));
  }
  EXPECT_EQ(files.file_bytes(), bytes);
}

TEST(WeightFiles, LeaveNothingUnlessFinished) {
  const TemporaryFolder out;
  { WeightFiles files(out.path(), kTensors, 100); }
  EXPECT_EQ(names_in_folder(out.path()), std::vector<std::string>());
}

}  // namespace
}  // namespace llm::io
