#include "llm/gguf/gguf_file.h"

#include <cstring>
#include <limits>

#include <ATen/TensorOperators.h>

#include "llm/gguf/gguf_writer.h"
#include "tests/llm/gguf/gguf_bytes.h"
#include "tests/llm/io/model_folders.h"

namespace llm::gguf {
namespace {

using io::expect_error;
using io::read_all;
using io::TemporaryFolder;
using io::write_all;

void expect_refused(const GgufBytes& bytes, const std::string& message) {
  const TemporaryFolder folder;
  write_all(folder / "model.gguf", bytes.bytes());
  expect_error([&] { const GgufFile file(folder / "model.gguf"); }, sherd::ExitCode::BadData,
               message);
}

const std::vector<KeyValue>& some_keys() {
  static const std::vector<KeyValue> keys = {{"general.architecture", text_value("llama")},
                                             {"a.whole", uint32_value(4'000'000'000)},
                                             {"a.point", float32_value(1e-5)},
                                             {"a.flag", bool_value(true)},
                                             {"a.texts", texts_value({"", "é", "x y"})},
                                             {"a.wholes", int32s_value({-1, 2})},
                                             {"a.points", float32s_value({0.5, -1000})}};
  return keys;
}

void write_some_file(const std::string& path) {
  GgufWriter writer(path, some_keys(),
                    {{.name = "one", .type = TensorType::F32, .shape = {3}},
                     {.name = "two", .type = TensorType::F16, .shape = {2, 5}}});
  const float one[] = {1, 2, 3};
  writer.write("one", one, sizeof one);
  const at::Tensor two = at::arange(10).to(at::kHalf);
  writer.write("two", two.const_data_ptr(), two.nbytes());
  writer.finish();
}

TEST(GgufFile, HoldsWhatWasWritten) {
  const TemporaryFolder folder;
  write_some_file(folder / "some.gguf");
  const GgufFile file(folder / "some.gguf");
  ASSERT_EQ(file.keys().size(), some_keys().size());
  for (std::size_t i = 0; i < some_keys().size(); ++i) {
    EXPECT_EQ(file.keys()[i].key, some_keys()[i].key);
    EXPECT_EQ(file.keys()[i].value, some_keys()[i].value) << some_keys()[i].key;
  }
  EXPECT_EQ(file.number("a.point"), 1e-5);  // and not 9.999999747378752e-06
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<std::int64_t>{2, 5}));
  EXPECT_TRUE(at::equal(file.read(file.tensors()[0]), at::arange(1, 4).to(at::kFloat)));
  EXPECT_TRUE(at::equal(file.read(file.tensors()[1]), at::arange(10).to(at::kHalf).view({2, 5})));
  expect_error([&] { static_cast<void>(file.whole("a.point")); }, sherd::ExitCode::BadData,
               "the key \"a.point\" must be a whole number");
  expect_error([&] { static_cast<void>(file.texts("a.none")); }, sherd::ExitCode::BadData,
               "the key \"a.none\" is missing");
}

TEST(GgufFile, ThatIsNotFinishedIsNotThere) {
  const TemporaryFolder folder;
  {
    GgufWriter writer(folder / "some.gguf", some_keys(),
                      {{.name = "one", .type = TensorType::F32, .shape = {3}}});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(GgufFile, IsRefusedWhereverItIsCut) {
  const TemporaryFolder folder;
  write_some_file(folder / "some.gguf");
  const std::string whole = read_all(folder / "some.gguf");
  for (std::size_t bytes = 0; bytes < whole.size() - 12; ++bytes) {
    write_all(folder / "cut.gguf", whole.substr(0, bytes));
    EXPECT_THROW(const GgufFile file(folder / "cut.gguf"), sherd::Error) << bytes;
  }
}

// Whatever a byte becomes, the file is read or refused.
TEST(GgufFile, WithAnyByteChangedIsReadOrRefused) {
  const TemporaryFolder folder;
  write_some_file(folder / "some.gguf");
  const std::string whole = read_all(folder / "some.gguf");
  int refused = 0;
  for (std::size_t place = 0; place < whole.size(); ++place) {
    for (const char other : {'\x00', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[place] = other;
      write_all(folder / "changed.gguf", changed);
      try {
        const GgufFile file(folder / "changed.gguf");
        for (const TensorInfo& tensor : file.tensors()) {
          static_cast<void>(file.read(tensor));
        }
      } catch (const sherd::Error& error) {
        EXPECT_EQ(error.code(), sherd::ExitCode::BadData) << place;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(GgufFile, IsRefusedWithABeginningThatIsNoneOfIt) {
  expect_refused(GgufBytes().text("safetensors and more"), "is no GGUF file");
  expect_refused(GgufBytes().begin(0, 0, 1), "is GGUF version 1, only 2 and 3 are read");
  expect_refused(GgufBytes().begin(0, 0, 0x03000000), "of the other byte order");
  expect_refused(GgufBytes().begin(std::uint64_t{1} << 60, 0), "the number of tensors is 11529215");
  expect_refused(GgufBytes().begin(0, std::uint64_t{1} << 60), "the number of keys is 11529215");
  expect_error([] { const GgufFile file("/none.gguf"); }, sherd::ExitCode::InputMissing,
               "/none.gguf");
}

TEST(GgufFile, IsRefusedWithKeysThatLie) {
  const auto key = [](std::uint64_t keys = 1) { return GgufBytes().begin(0, keys).text("k"); };
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  expect_refused(key().whole32(13).whole64(0), "\"k\" has type 13, which GGUF does not know");
  expect_refused(key().whole32(8).whole64(huge), "the length of \"k\" is 18446744073709551615");
  expect_refused(key().whole32(8).text("\xff"), "\"k\" is not UTF-8");
  expect_refused(key().whole32(7).number<std::uint8_t>(2), "\"k\" must be 0 or 1, found 2");
  expect_refused(key().whole32(9).whole32(9).whole64(1), "an array of arrays");
  expect_refused(key().whole32(9).whole32(8).whole64(huge),
                 "the number of items of \"k\" is 18446744073709551615, more than the file");
  expect_refused(key().whole32(10).whole64(huge), "beyond what is read");
  expect_refused(key(2).whole32(4).whole32(1).text("k").whole32(4).whole32(1),
                 "the key \"k\" is there twice");
  expect_refused(GgufBytes().begin(0, 1).text("general.alignment").whole32(4).whole32(24),
                 "\"general.alignment\" 24 is no power of two");
}

TEST(GgufFile, IsRefusedWithTensorsThatLie) {
  const auto one = [](std::uint64_t tensors = 1) { return GgufBytes().begin(tensors, 0); };
  const std::uint64_t huge = std::uint64_t{1} << 62;
  expect_refused(one().tensor("t", {}, 0, 0).data(0), "\"t\" has 0 dimensions, expected 1 to 4");
  expect_refused(one().tensor("t", {1, 1, 1, 1, 1}, 0, 0).data(4), "has 5 dimensions");
  expect_refused(one().tensor("t", {0}, 0, 0).data(4), "has a dimension of 0");
  expect_refused(one().tensor("t", {huge, 8}, 0, 0).data(4), "has a dimension of 46116860");
  expect_refused(one().tensor("t", {1 << 30, 1 << 30}, 0, 0).data(4), "has a dimension of 10737");
  expect_refused(one().tensor("t", {256}, 11, 0).data(256),
                 "tensor \"t\" has type 11, which is not read, only F32, F16, BF16, Q8_0, Q4_0");
  expect_refused(one().tensor("t", {31}, 8, 0).data(256),
                 "has rows of 31 numbers, no multiple of the 32 of a block of Q8_0");
  expect_refused(one().tensor("t", {8}, 0, 0).data(31),
                 "takes 32 bytes from 0 on, and the file has 31 for tensors");
  expect_refused(one().tensor("t", {8}, 0, 64).data(64), "takes 32 bytes from 64 on");
  expect_refused(one().tensor("t", {8}, 0, huge).data(64), "takes 32 bytes from 46116860");
  expect_refused(one().tensor("t", {8}, 0, 4).data(64), "begins at 4, no multiple of 32");
  expect_refused(one(2).tensor("t", {16}, 0, 0).tensor("u", {8}, 0, 32).data(64),
                 "tensors \"t\" and \"u\" overlap");
  expect_refused(one(2).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).data(64),
                 "tensor \"t\" is there twice");
  expect_refused(one().tensor(std::string(65, 't'), {8}, 0, 0).data(32),
                 "the length of a tensor's name is 65");
  expect_refused(one().tensor("t", {8}, 0, 0), "the file ends, at");
}

}  // namespace
}  // namespace llm::gguf
