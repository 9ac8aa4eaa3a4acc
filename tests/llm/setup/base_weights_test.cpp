// The weights of a folder are known by their content, which is read once.

#include "llm/setup/base_weights.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sherd/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::setup {
namespace {

namespace fs = std::filesystem;
using sherd::test::TempFolder;

// More than one digest of 64 MiB has, and a second tensor.
constexpr std::int64_t kLarge = (std::int64_t{66} << 20) / 4, kSmall = 3;

std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i % 1000));
  }
  return values;
}

struct Weights {
  std::vector<float> large = numbers(kLarge), small = numbers(kSmall);
};

void write_file_of(const fs::path& path, const std::vector<std::string>& names,
                   const Weights& weights) {
  std::vector<sherd::SafetensorsSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, at::kFloat, {name == "large" ? kLarge : kSmall}});
  }
  sherd::SafetensorsWriter writer(path, specs);
  for (const std::string& name : names) {
    const auto& values = name == "large" ? weights.large : weights.small;
    writer.write(name, values.data(), values.size() * sizeof(float));
  }
  writer.finish();
}

std::string digest_of_one_file(const TempFolder& folder, const std::string& name,
                               const Weights& weights) {
  fs::create_directory(folder.path() / name);
  write_file_of(folder.path() / name / "model.safetensors", {"large", "small"}, weights);
  return base_weights(folder.path() / name).sha256;
}

TEST(BaseWeights, AreTheSameHoweverTheyAreCutIntoFiles) {
  const TempFolder folder;
  const Weights weights;
  const std::string one = digest_of_one_file(folder, "one", weights);
  EXPECT_EQ(one.size(), 64U);
  const fs::path two = folder.path() / "two";
  fs::create_directory(two);
  write_file_of(two / "a.safetensors", {"small"}, weights);
  write_file_of(two / "b.safetensors", {"large"}, weights);
  std::ofstream(two / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", {{"small", "a.safetensors"}, {"large", "b.safetensors"}}}};
  EXPECT_EQ(base_weights(two).sha256, one);
  EXPECT_EQ(base_weights(two).files.size(), 2U);
}

TEST(BaseWeights, AreOthersWithOneOtherBitAnywhere) {
  const TempFolder folder;
  const std::string plain = digest_of_one_file(folder, "plain", {});
  int i = 0;
  for (const std::int64_t element : {std::int64_t{5}, kLarge / 2 + 77, kLarge - 1}) {
    Weights other;
    other.large[static_cast<std::size_t>(element)] += 1;
    EXPECT_NE(digest_of_one_file(folder, "other" + std::to_string(++i), other), plain) << element;
  }
  Weights other;
  other.small[1] += 1;
  EXPECT_NE(digest_of_one_file(folder, "small", other), plain);
}

TEST(BaseWeights, AreReadAgainOnlyIfAFileHasChanged) {
  const TempFolder folder;
  Weights weights;
  const std::string digest = digest_of_one_file(folder, "one", weights);
  const fs::path one = folder.path() / "one", file = one / "model.safetensors";
  BaseWeights known = base_weights(one);
  known.sha256 = "as it was";
  EXPECT_EQ(base_weights(one, known).sha256, "as it was");
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1));
  EXPECT_EQ(base_weights(one, known).sha256, digest);
  known = base_weights(one);
  known.sha256 = "as it was";
  known.files.front().bytes += 1;
  EXPECT_EQ(base_weights(one, known).sha256, digest);
}

// A sibling of the same shape, whose packer gave all files one time.
TEST(BaseWeights, OfAnotherFolderAreReadThoughTheFilesLookAlike) {
  const TempFolder folder;
  Weights changed;
  changed.small[0] += 1;
  static_cast<void>(digest_of_one_file(folder, "one", {}));
  const std::string digest = digest_of_one_file(folder, "two", changed);
  const fs::path one = folder.path() / "one", two = folder.path() / "two";
  fs::last_write_time(two / "model.safetensors", fs::last_write_time(one / "model.safetensors"));
  const BaseWeights known = base_weights(one);
  EXPECT_EQ(base_weights(two, known).files, known.files);
  EXPECT_EQ(base_weights(two, known).sha256, digest);
  EXPECT_EQ(
      base_weights(folder.path() / "two/../one/.", {"as it was", known.files, known.folder}).sha256,
      "as it was");
}

TEST(BaseWeights, OfAnotherBaseAreRefusedWithBothDigests) {
  const TempFolder folder;
  const std::string digest = digest_of_one_file(folder, "one", {});
  const std::string one = folder.path() / "one";
  require_base(one, {}, "runs/a", "");
  require_base(one, {digest, {}}, "runs/a", "");
  sherd::test::expect_error(
      [&] {
        require_base(one, {std::string(64, 'a'), {}}, "runs/a", "Restore it.");
      },
      sherd::ExitCode::BadData,
      {"'runs/a' holds only the parameters that were trained", "SHA-256 aaaaaaaaaaaa…",
       "in '" + one + "' have " + digest.substr(0, 12) + "…", "another base. Restore it."});
}

}  // namespace
}  // namespace llm::setup
