// Reading tensors and slices of them.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/safetensors.h"
#include "tests/safetensors/safetensors_files.h"

namespace sherd {
namespace {

using test::error_of;
using test::safetensors_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                      at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};
constexpr at::ScalarType kFloats[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

std::string random_bytes(size_t count, bool is_bool) {
  std::mt19937 random(7);
  std::string bytes(count, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(is_bool ? random() % 2 : random() % 256);
  }
  return bytes;
}

void write_tensor(const std::string& path, at::ScalarType dtype, std::vector<int64_t> shape,
                  const std::string& bytes) {
  SafetensorsWriter writer(path, {{"x", dtype, std::move(shape)}});
  writer.write("x", bytes.data(), bytes.size());
  writer.finish();
}

TEST(Safetensors, RoundTripsEveryDtype) {
  const test::TemporaryFolder folder;
  for (const at::ScalarType dtype : kDtypes) {
    const std::string bytes = random_bytes(30 * c10::elementSize(dtype), dtype == at::kBool);
    write_tensor(folder / "x", dtype, {5, 2, 3}, bytes);
    const SafetensorsFile file(folder / "x");
    const SafetensorsEntry* entry = file.find("x");
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->dtype, dtype);
    EXPECT_EQ(entry->numel(), 30);
    const at::Tensor tensor = file.read(*entry);
    EXPECT_EQ(tensor.scalar_type(), dtype);
    EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{5, 2, 3}));
    EXPECT_EQ(std::memcmp(tensor.const_data_ptr(), bytes.data(), bytes.size()), 0)
        << c10::toString(dtype);
  }
}

// Longer than the conversion's buffer of 1 MiB, and no multiple of it.
TEST(Safetensors, SlicesConvertAsWholeTensorsDo) {
  const test::TemporaryFolder folder;
  constexpr int64_t kItems = 300'001;
  for (const at::ScalarType from : kFloats) {
    write_tensor(folder / "x", from, {kItems},
                 random_bytes(kItems * c10::elementSize(from), false));
    const SafetensorsFile file(folder / "x");
    const SafetensorsEntry& entry = *file.find("x");
    const at::Tensor whole = file.read(entry);
    for (const at::ScalarType to : kFloats) {
      const at::Tensor expected = whole.to(to);
      for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, kItems},
                                                                               {0, 0},
                                                                               {kItems, kItems},
                                                                               {1, 2},
                                                                               {77, 131'149},
                                                                               {131'071, 262'145},
                                                                               {5, kItems - 1}}) {
        const size_t bytes = static_cast<size_t>(end - begin) * c10::elementSize(to);
        std::string out(bytes + 8, '#');  // what lies behind must stay
        file.read_elements(entry, begin, end, to, out.data());
        const char* wanted = static_cast<const char*>(expected.const_data_ptr()) +
                             static_cast<size_t>(begin) * c10::elementSize(to);
        EXPECT_EQ(std::memcmp(out.data(), wanted, bytes), 0)
            << c10::toString(from) << " to " << c10::toString(to) << " [" << begin << ", " << end
            << ")";
        EXPECT_EQ(out.substr(bytes), "########");
      }
    }
  }
}

TEST(Safetensors, RoundsToNearestEven) {
  const test::TemporaryFolder folder;
  // bf16 keeps 7 bits behind the point: 1 + 2^-8 lies half-way between 1 and 1 + 2^-7, 1 + 3·2^-8
  // between 1 + 2^-7 and 1 + 2^-6.
  const std::vector<float> values = {1.0F,
                                     1.0F + 0x1p-8F,
                                     1.0F + 3 * 0x1p-8F,
                                     1.0F + 0x1p-8F + 0x1p-20F,
                                     -2.5F,
                                     std::numeric_limits<float>::infinity(),
                                     3.4e38F};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xc020, 0x7f80, 0x7f80};
  write_tensor(folder / "x", at::kFloat, {7},
               std::string(reinterpret_cast<const char*>(values.data()), 28));
  const SafetensorsFile file(folder / "x");
  std::vector<uint16_t> found(7);
  file.read_elements(*file.find("x"), 0, 7, at::kBFloat16, found.data());
  EXPECT_EQ(found, expected);
}

TEST(Safetensors, RefusesOtherConversions) {
  const test::TemporaryFolder folder;
  write_tensor(folder / "x", at::kLong, {2}, std::string(16, '\0'));
  const SafetensorsFile file(folder / "x");
  float out[2];
  EXPECT_EQ(error_of([&] { file.read_elements(*file.find("x"), 0, 2, at::kFloat, out); }),
            "65: " + (folder / "x") + ": tensor \"x\" is I64: cannot be read as Float");
  EXPECT_THAT(error_of([&] { file.read_elements(*file.find("x"), 0, 2, at::kInt, out); }),
              HasSubstr("read as Int"));
}

TEST(Safetensors, RefusesRangesOutsideOfTheTensor) {
  const test::TemporaryFolder folder;
  write_tensor(folder / "x", at::kFloat, {2}, std::string(8, '\0'));
  const SafetensorsFile file(folder / "x");
  float out[4];
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 1}, {0, 3}, {2, 1}, {3, 3}}) {
    EXPECT_THAT(error_of([&] { file.read_elements(*file.find("x"), begin, end, at::kFloat, out); }),
                AllOf(StartsWith("64: "), HasSubstr("of tensor x, which has 2")));
  }
}

TEST(Safetensors, OtherDtypesAreRefusedWhenAskedForOnly) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  test::write_file(path,
                   safetensors_bytes(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                     8));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.entries()[0].dtype, at::ScalarType::Undefined);
  EXPECT_EQ(file.entries()[0].dtype_name, "F8_E4M3");
  EXPECT_TRUE(file.contains("a"));
  const std::string refusal =
      "65: " + path + ": tensor \"a\" is F8_E4M3, which Sherd does not read";
  EXPECT_THAT(error_of([&] { (void)file.find("a"); }), StartsWith(refusal));
  EXPECT_THAT(error_of([&] { (void)file.read(file.entries()[0]); }), StartsWith(refusal));
  char out[4];
  EXPECT_THAT(error_of([&] { file.read_elements(file.entries()[0], 0, 4, at::kByte, out); }),
              StartsWith(refusal));
  EXPECT_EQ(file.read(*file.find("b"))[1].item<uint8_t>(), 5);
}

TEST(Safetensors, RefusesABoolThatIsNone) {
  const test::TemporaryFolder folder;
  test::write_file(
      folder / "x",
      safetensors_bytes(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", 3));
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(error_of([&] { (void)file.read(*file.find("m")); }),
            "65: " + (folder / "x") + ": tensor \"m\": expected 0 or 1 in a BOOL, found 2");
}

TEST(Safetensors, AFileCutAfterOpeningIsAnErrorOfTheStorage) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  write_tensor(path, at::kFloat, {1000}, std::string(4000, '\0'));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  EXPECT_THAT(error_of([&] { (void)file.read(*file.find("x")); }),
              ::testing::AllOf(StartsWith("74: " + path),
                               HasSubstr("100 bytes early: it was cut after it was opened")));
  double out[1000];
  EXPECT_THAT(error_of([&] { file.read_elements(*file.find("x"), 0, 1000, at::kDouble, out); }),
              StartsWith("74: "));
  file.read_elements(*file.find("x"), 0, 975, at::kDouble, out);  // what is still there
}

TEST(Safetensors, ReadsMetadata) {
  const SafetensorsFile file(test::data_path("stories260k-hf/model.safetensors"));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(Safetensors, MovesKeepEntriesValid) {
  SafetensorsFile file(test::data_path("stories260k-hf/model.safetensors"));
  const SafetensorsEntry* entry = file.find("model.norm.weight");
  const at::Tensor before = file.read(*entry);
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.find("model.norm.weight"), entry);
  EXPECT_TRUE(at::equal(moved.read(*entry), before));
}

}  // namespace
}  // namespace sherd
