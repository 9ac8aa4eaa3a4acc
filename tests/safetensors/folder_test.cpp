// Hugging Face model folders.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/safetensors.h"
#include "tests/safetensors/safetensors_files.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kIndex = "model.safetensors.index.json";

// A file with tensors of one byte each.
std::string file_with(const std::vector<std::string>& names) {
  std::string header = "{";
  size_t byte = 0;
  for (const std::string& name : names) {
    header += (byte == 0 ? "\"" : ",\"") + name +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(byte) + "," +
              std::to_string(byte + 1) + "]}";
    ++byte;
  }
  return test::safetensors_bytes(header + "}", names.size());
}

std::string error_of_folder(const std::string& path) {
  return error_of([&] { SafetensorsFolder folder(path); });
}

TEST(SafetensorsFolder, ReadsOneFile) {
  const SafetensorsFolder folder(test::data_path("stories260k-hf"));
  EXPECT_EQ(folder.files().size(), 1U);
  EXPECT_EQ(folder.names().size(), 47U);
  const auto found = folder.find("model.embed_tokens.weight");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->file->read(*found->entry).sizes(), (std::vector<int64_t>{512, 64}));
  EXPECT_FALSE(folder.find("lm_head.weight"));
  EXPECT_TRUE(folder.unmapped().empty());
}

TEST(SafetensorsFolder, ReadsAFileByItsPath) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "adapter.safetensors", file_with({"a", "b"}));
  const SafetensorsFolder model(folder / "adapter.safetensors");
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.find("b")->file, &model.files().front());
  EXPECT_THAT(error_of_folder(folder / "none.safetensors"), HasSubstr("none.safetensors"));
}

TEST(SafetensorsFolder, ReadsShards) {
  const SafetensorsFolder folder(test::data_path("tiny-llama3-hf"));
  EXPECT_EQ(folder.files().size(), 2U);
  int64_t parameters = 0;
  for (const std::string& name : folder.names()) {
    const auto found = folder.find(name);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->entry->name, name);
    EXPECT_EQ(found->entry->dtype, at::kBFloat16);
    parameters += found->entry->numel();
  }
  EXPECT_EQ(parameters, 158016);  // what the index says
  EXPECT_THAT(folder.find("lm_head.weight")->file->path(),
              HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_THAT(folder.find("model.embed_tokens.weight")->file->path(),
              HasSubstr("model-00001-of-00002"));
}

TEST(SafetensorsFolder, ReportsWhatTheIndexLeavesOut) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "one.safetensors", file_with({"a", "b"}));
  test::write_file(folder / "two.safetensors", file_with({"b", "c"}));
  test::write_file(folder / kIndex,
                   R"({"metadata":{"total_size":2,"x":[1,{"y":null}]},"weight_map":)"
                   R"({"a":"one.safetensors","b":"two.safetensors"},"more":-1.5})");
  const SafetensorsFolder model(folder.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.find("b")->file, &model.files()[1]);
  const std::vector<SafetensorsLocation> unmapped = model.unmapped();
  ASSERT_EQ(unmapped.size(), 2U);
  EXPECT_EQ(unmapped[0].entry->name, "b");
  EXPECT_EQ(unmapped[0].file, &model.files()[0]);
  EXPECT_EQ(unmapped[1].entry->name, "c");
}

TEST(SafetensorsFolder, SaysWhatIsMissing) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(error_of_folder(folder / "none"), "66: " + (folder / "none") + ": no such folder");
  const std::string looked_for =
      "66: " + folder.path() +
      ": no weights: looked for model.safetensors and model.safetensors.index.json";
  EXPECT_EQ(error_of_folder(folder.path()), looked_for);
  test::write_file(folder / "model-00001-of-00002.safetensors", "");
  EXPECT_EQ(error_of_folder(folder.path()),
            looked_for + ". It holds model-00001-of-00002.safetensors, but no index that names it");
  test::write_file(folder / "model.bin", "");
  EXPECT_THAT(error_of_folder(folder / "model.bin"), HasSubstr(": is not a folder"));
}

TEST(SafetensorsFolder, NeverReadsPickles) {
  for (const std::string name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth"}) {
    const test::TemporaryFolder folder;
    test::write_file(folder / name, "");
    EXPECT_THAT(error_of_folder(folder.path()),
                AllOf(StartsWith("66: "), HasSubstr("It holds " + name + ", a pickle"),
                      HasSubstr("Sherd never reads. Convert it once"),
                      HasSubstr("safe_serialization=True")));
  }
}

TEST(SafetensorsFolder, NamesTheMissingShard) {
  const test::TemporaryFolder folder;
  test::write_file(folder / kIndex, R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_EQ(error_of_folder(folder.path()), "66: " + (folder / "one.safetensors") +
                                                ": cannot be opened: No such file or directory");
}

TEST(SafetensorsFolder, RefusesAMappedTensorThatIsNotThere) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "one.safetensors", file_with({"a"}));
  test::write_file(folder / kIndex,
                   R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  EXPECT_EQ(error_of_folder(folder.path()),
            "65: " + (folder / kIndex) +
                ": tensor \"b\" should be in one.safetensors, which has no such tensor");
}

TEST(SafetensorsFolder, RefusesABadShardByName) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "one.safetensors", "short");
  test::write_file(folder / kIndex, R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_THAT(error_of_folder(folder.path()),
              StartsWith("65: " + (folder / "one.safetensors") + ": expected at least"));
}

TEST(SafetensorsFolder, RefusesBadIndexes) {
  const test::TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "near byte 0: not valid JSON"},
      {"[]", "expected an object with \"weight_map\", found an array"},
      {"{}", "no tensors in \"weight_map\""},
      {R"({"weight_map":{}})", "no tensors in \"weight_map\""},
      {R"({"weight_map":1})",
       "expected an object of file names for \"weight_map\", found the number 1"},
      {R"({"weight_map":{"a":1}})", "expected a file name for tensor \"a\", found the number 1"},
      {R"({"weight_map":{"a":{}}})", "expected a file name for tensor \"a\", found an object"},
      {R"({"weight_map":{"a":[]}})", "expected a file name for tensor \"a\", found an array"},
      {R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})",
       "tensor \"a\" occurs twice in \"weight_map\""},
      {R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})",
       "\"weight_map\" occurs twice in the file"},
      {R"({"weight_map":{"a":"x.safetensors"}} x)", "not valid JSON"},
      {R"({"metadata":)" + std::string(100, '[') + std::string(100, ']') + "}",
       "nested deeper than 64 levels"},
      {R"({"weight_map":{")" + std::string(4097, 'n') + R"(":"x.safetensors"}})",
       "a tensor name of 4097 bytes"},
  };
  for (const auto& [index, message] : cases) {
    test::write_file(folder / kIndex, index);
    EXPECT_THAT(error_of_folder(folder.path()),
                AllOf(StartsWith("65: " + (folder / kIndex)), HasSubstr(message)));
  }
}

TEST(SafetensorsFolder, RefusesFilesOutsideOfTheFolder) {
  const test::TemporaryFolder outer;
  fs::create_directories(outer / "model/sub");
  for (const std::string place : {"outside.safetensors", "model/sub/inside.safetensors"}) {
    test::write_file(outer / place, file_with({"a"}));
  }
  for (const std::string file :
       {"../outside.safetensors", "sub/inside.safetensors", "/etc/x.safetensors", "..", "", ".",
        ".hidden.safetensors", "..\\\\outside.safetensors", "a\\u0000.safetensors",
        "pytorch_model.bin", ".safetensors"}) {
    test::write_file(outer / (std::string("model/") + kIndex),
                     R"({"weight_map":{"a":")" + file + "\"}}");
    EXPECT_THAT(error_of_folder(outer / "model"),
                AllOf(StartsWith("65: "),
                      HasSubstr("tensor \"a\": expected the plain name of a .safetensors file")))
        << file;
  }
}

TEST(SafetensorsFolder, FollowsLinksInTheHubCacheOnly) {
  const test::TemporaryFolder cache;
  fs::create_directories(cache / "models--x/blobs");
  fs::create_directories(cache / "models--x/snapshots/abc");
  test::write_file(cache / "models--x/blobs/1234", file_with({"a"}));
  test::write_file(cache / "secret", file_with({"a"}));
  const std::string snapshot = cache / "models--x/snapshots/abc";
  const std::string link = snapshot + "/model.safetensors";

  fs::create_symlink("../../blobs/1234", link);
  EXPECT_TRUE(SafetensorsFolder(snapshot).find("a"));

  fs::remove(link);
  fs::create_symlink("../../../secret", link);
  EXPECT_EQ(error_of_folder(snapshot),
            "65: " + link + ": links to " + fs::canonical(cache / "secret").string() +
                ", outside of its folder: copy the file there, or name the folder it points to");

  fs::remove(link);
  fs::create_symlink("gone", link);
  EXPECT_EQ(error_of_folder(snapshot),
            "66: " + link + ": cannot be opened: No such file or directory");

  fs::remove(link);
  test::write_file(snapshot + "/other.safetensors", file_with({"b"}));
  fs::create_symlink("other.safetensors", link);
  EXPECT_TRUE(SafetensorsFolder(snapshot).find("b"));
  fs::create_directory_symlink(snapshot,
                               cache / "alias");  // the folder itself may be reached by a link
  EXPECT_TRUE(SafetensorsFolder(cache / "alias").find("b"));
}

TEST(SafetensorsFolder, LinksToBlobsOutsideOfACacheAreRefused) {
  const test::TemporaryFolder outer;
  fs::create_directories(outer / "blobs");
  fs::create_directories(outer / "x/model");
  test::write_file(outer / "blobs/1", file_with({"a"}));
  fs::create_symlink("../../blobs/1", outer / "x/model/model.safetensors");
  EXPECT_THAT(error_of_folder(outer / "x/model"), HasSubstr("outside of its folder"));
}

}  // namespace
}  // namespace sherd
