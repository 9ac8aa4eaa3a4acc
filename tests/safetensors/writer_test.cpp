// What SafetensorsWriter leaves on the disk, finished or not.

#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sherd/safetensors.h"
#include "tests/safetensors/safetensors_files.h"

namespace sherd {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<SafetensorsSpec> kTwo = {{"a", at::kFloat, {2}}, {"b", at::kFloat, {1}}};

// Largest file this process may write, while it lives; writing beyond is an error and not a signal.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(SafetensorsWriter, WritesTheFormat) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  SafetensorsWriter writer(
      path, {{"flag", at::kBool, {3}}, {"w\"é", at::kFloat, {2}}, {"n", at::kLong, {}}},
      {{"format", "pt"}});
  const float w[] = {1.5F, -2.0F};
  const int64_t n = 7;
  const bool flags[] = {true, false, true};
  // By turns, in pieces.
  writer.write("w\"é", &w[0], 4);
  writer.write("n", &n, 8);
  writer.write("flag", flags, 1);
  writer.write("w\"é", &w[1], 4);
  writer.write("flag", flags + 1, 2);
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();

  const std::string bytes = test::read_file(path);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w\"é":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
      R"("flag":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]}})";
  const auto header_bytes = static_cast<size_t>(static_cast<unsigned char>(bytes[0]));
  EXPECT_EQ(bytes.substr(1, 7), std::string(7, '\0'));
  EXPECT_EQ((8 + header_bytes) % 64, 0U);
  EXPECT_EQ(bytes.substr(8, header_bytes), json + std::string(header_bytes - json.size(), ' '));
  EXPECT_EQ(bytes.size(), 8 + header_bytes + 19);
  EXPECT_EQ(writer.file_bytes(), bytes.size());
  EXPECT_EQ(folder.count(), 1);  // no temporary file

  const SafetensorsFile file(path);
  EXPECT_EQ(file.read(*file.find("n")).item<int64_t>(), 7);
  EXPECT_EQ(file.read(*file.find("w\"é"))[1].item<float>(), -2.0F);
  EXPECT_FALSE(file.read(*file.find("flag"))[1].item<bool>());
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(SafetensorsWriter, MayBeMadeDurableInBetween) {
  const test::TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x.safetensors", kTwo);
  const float values[] = {1, 2};
  writer.write("a", values, 8);
  writer.sync();
  writer.write("b", values, 4);
  writer.sync();
  writer.finish();
  EXPECT_EQ(SafetensorsFile(folder / "x.safetensors").entries().size(), 2U);
}

TEST(SafetensorsWriter, WritesNothingAtAll) {
  const test::TemporaryFolder folder;
  SafetensorsWriter(folder / "x", {}).finish();
  EXPECT_TRUE(SafetensorsFile(folder / "x").entries().empty());
}

TEST(SafetensorsWriter, LeavesNothingUnlessFinished) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  test::write_file(path, "old");
  {
    SafetensorsWriter writer(path, kTwo);
    EXPECT_TRUE(std::filesystem::exists(path + ".tmp-" + std::to_string(getpid())));
    writer.write("a", "12345678", 8);
  }
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(test::read_file(path), "old");
}

TEST(SafetensorsWriter, ReplacesTheOldFileAndWhatACrashLeftBehind) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  test::write_file(path, "old");
  test::write_file(folder / "victim", "precious");
  std::filesystem::create_symlink("victim", path + ".tmp-" + std::to_string(getpid()));
  SafetensorsWriter writer(path, kTwo);
  writer.write("a", "12345678", 8);
  writer.write("b", "1234", 4);
  writer.finish();
  EXPECT_EQ(SafetensorsFile(path).entries().size(), 2U);
  EXPECT_EQ(test::read_file(folder / "victim"), "precious");
  EXPECT_EQ(folder.count(), 2);
}

TEST(SafetensorsWriter, TakesPartsInAnyOrderFromSeveralThreads) {
  const test::TemporaryFolder folder;
  constexpr int64_t kPart = 1000;
  constexpr int64_t kParts = 40;
  const at::Tensor values = at::arange(kParts * kPart, at::kInt);
  SafetensorsWriter writer(folder / "x", {{"a", at::kInt, {kParts * kPart}}, {"b", at::kInt, {1}}});
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t part = kParts - 1 - thread; part >= 0; part -= 4) {
        writer.write_at("a", static_cast<uint64_t>(part * kPart * 4),
                        values.const_data_ptr<int>() + part * kPart, kPart * 4);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(error_of([&] { writer.finish(); }),
              AllOf(StartsWith("64: "), HasSubstr("tensor b: 4 bytes have not been written")));
  EXPECT_THAT(
      error_of([&] { writer.write_at("b", 1, "1234", 4); }),
      AllOf(StartsWith("64: "), HasSubstr("tensor b: 4 bytes from byte 1 on, but it has only 4")));
  writer.write_at("b", 0, "1234", 4);
  writer.finish();
  const SafetensorsFile file(folder / "x");
  EXPECT_TRUE(at::equal(file.read(*file.find("a")), values));
}

TEST(SafetensorsWriter, CountsTheBytes) {
  const test::TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", kTwo);
  writer.write("a", "1234", 4);
  EXPECT_THAT(
      error_of([&] { writer.write("a", "12345", 5); }),
      AllOf(StartsWith("64: "), HasSubstr("tensor a: 5 more bytes, but only 4 are left of it")));
  EXPECT_THAT(error_of([&] { writer.write("c", "1", 1); }),
              AllOf(StartsWith("64: "), HasSubstr("tensor c was not announced")));
  writer.write("b", "1234", 4);
  EXPECT_THAT(error_of([&] { writer.finish(); }),
              AllOf(StartsWith("64: "), HasSubstr("tensor a: 4 bytes have not been written")));
  writer.write("a", "1234", 4);
  writer.finish();
  EXPECT_THAT(error_of([&] { writer.finish(); }),
              AllOf(StartsWith("64: "), HasSubstr("is already finished")));
}

TEST(SafetensorsWriter, RefusesWhatAFileCannotHold) {
  const test::TemporaryFolder folder;
  const std::vector<std::pair<std::vector<SafetensorsSpec>, std::string>> cases = {
      {{{"a", at::kFloat, {1}}, {"a", at::kFloat, {1}}}, "tensor \"a\" occurs twice in the header"},
      {{{"__metadata__", at::kFloat, {1}}}, "no tensor may be called __metadata__"},
      {{{"a", at::kComplexFloat, {1}}}, "tensor a: safetensors has no dtype ComplexFloat"},
      {{{"a", at::kFloat, {-1}}}, "shape [-1] is too large or negative"},
      {{{"a", at::kFloat, {int64_t{1} << 40, int64_t{1} << 40}}}, "is too large or negative"},
      {{{"a", at::kByte, {INT64_MAX / 8}},
        {"b", at::kByte, {INT64_MAX / 8}},
        {"c", at::kByte, {INT64_MAX / 8}},
        {"d", at::kByte, {INT64_MAX / 8}},
        {"e", at::kByte, {INT64_MAX / 8}},
        {"f", at::kByte, {INT64_MAX / 8}},
        {"g", at::kByte, {INT64_MAX / 8}},
        {"h", at::kByte, {INT64_MAX / 8}},
        {"i", at::kByte, {INT64_MAX / 8}}},
       "tensor i: shape [1152921504606846975] is too large"},
      {{{"a", at::kFloat, std::vector<int64_t>(17, 1)}}, "more than 16 dimensions"},
      {{{"a\nb", at::kFloat, {1}}}, "a control character in the tensor name"},
      {{{"\xff", at::kFloat, {1}}}, "not UTF-8"},
      {{{std::string(4097, 'n'), at::kFloat, {1}}}, "a tensor name of 4097 bytes"},
  };
  for (const auto& [specs, message] : cases) {
    EXPECT_THAT(
        error_of([&, &tensors = specs] { SafetensorsWriter writer(folder / "x", tensors); }),
        AllOf(StartsWith("64: "), HasSubstr(message)));
  }
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, SaysWhyAFileCannotBeCreated) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "file", "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder / "none/x", "No such file or directory"},
      {folder / "file/x", "Not a directory"},
      {folder.path(), "Is a directory"},
      {folder / std::string(300, 'n'), "File name too long"},
  };
  for (const auto& [path, message] : cases) {
    EXPECT_EQ(error_of([&, &place = path] { SafetensorsWriter writer(place, kTwo); }),
              "73: " + path + ": cannot be created: " + message);
  }
  EXPECT_EQ(folder.count(), 1);
}

TEST(SafetensorsWriter, SaysBeforehandThatTheDiskIsTooSmall) {
  const test::TemporaryFolder folder;
  const FileSizeLimit limit(1 << 20);
  EXPECT_THAT(
      error_of([&] {
        SafetensorsWriter writer(folder / "x", {{"a", at::kByte, {2 << 20}}});
      }),
      AllOf(StartsWith("73: " + (folder / "x") + ": cannot be created: needs 2097280 bytes, "),
            HasSubstr(" are free: File too large")));
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, AFailingWriteIsAnErrorOfTheStorage) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  {
    SafetensorsWriter writer(path, {{"a", at::kByte, {2 << 20}}});
    const std::string bytes(2 << 20, 'x');
    const FileSizeLimit limit(1 << 20);
    EXPECT_EQ(error_of([&] { writer.write("a", bytes.data(), bytes.size()); }),
              "74: " + path + ".tmp-" + std::to_string(getpid()) +
                  ": writing at byte 1048576 failed: File too large");
  }
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, AFailingRenameIsAnErrorOfTheStorage) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  {
    SafetensorsWriter writer(path, {});
    std::filesystem::create_directory(path);
    EXPECT_THAT(error_of([&] { writer.finish(); }),
                AllOf(StartsWith("74: "), HasSubstr("cannot be renamed to " + path)));
  }
  EXPECT_EQ(folder.count(), 1);
}

}  // namespace
}  // namespace sherd
