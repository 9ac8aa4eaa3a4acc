// What SafetensorsFile refuses, and with which words.

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "sherd/safetensors.h"
#include "tests/safetensors/safetensors_files.h"

namespace sherd {
namespace {

using test::error_of;
using test::safetensors_bytes;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

// A header with one tensor "a" of the given fields.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string two(const std::string& first_offsets, const std::string& second_offsets) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first_offsets +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second_offsets + "}}";
}

struct BadFile {
  const char* name;
  std::string bytes;
  std::string message;  // a part of it
};

std::vector<BadFile> bad_lengths() {
  const std::string good = safetensors_bytes(tensor(R"("F32")", "[2]", "[0,8]"), 8);
  return {
      {"empty file", "", "expected at least 8 bytes of header length, found a file of 0"},
      {"seven bytes", std::string(7, '\0'), "found a file of 7"},
      {"no header", std::string(8, '\0'), "header, near byte 0: not valid JSON"},
      {"length beyond the cap", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}",
       "expected a header of at most 100000000 bytes, found a header length of 100000001"},
      {"length of all ones", std::string(8, '\xff') + "{}",
       "found a header length of 18446744073709551615"},
      {"length beyond the file", std::string("\x03\0\0\0\0\0\0\0{}", 10),
       "header length 3 reaches beyond the file, which has 10 bytes"},
      {"truncated header", good.substr(0, 40),
       "reaches beyond the file, which has 40 bytes: truncated?"},
      {"length one too small", static_cast<char>(good[0] - 1) + good.substr(1), "not valid JSON"},
      {"length one too large", static_cast<char>(good[0] + 1) + good.substr(1),
       "a NUL byte after the JSON text"},
      {"pointer of Git LFS",
       "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 10\n",
       "found a Git LFS pointer, not the file itself: run `git lfs pull`"},
  };
}

std::vector<BadFile> bad_json() {
  const std::string good = tensor(R"("F32")", "[2]", "[0,8]");
  const auto file = [](const std::string& header) { return safetensors_bytes(header, 8); };
  return {
      {"not JSON", file("hello"),
       "near byte 0: not valid JSON: syntax error while parsing value - invalid literal"},
      {"cut JSON", file(good.substr(0, 20)), "not valid JSON: syntax error while parsing"},
      {"text after the JSON", file(good + " x"),
       "not valid JSON: syntax error while parsing value - invalid literal"},
      {"second JSON", file(good + "{}"), "not valid JSON"},
      {"NUL after the JSON", file(good + std::string(1, '\0')), "a NUL byte after the JSON text"},
      {"NUL and text after the JSON", file(good + std::string("\0{}", 3)),
       "a NUL byte after the JSON text"},
      {"comment", file("/* */" + good), "not valid JSON"},
      {"byte order mark", file("\xEF\xBB\xBF" + good),
       "near byte 0: expected '{', found a byte order mark"},
      {"not UTF-8", file("{\"\xff\":1}"), "ill-formed UTF-8 byte"},
      {"overlong UTF-8", file("{\"\xc0\xaf\":1}"), "ill-formed UTF-8 byte"},
      {"lone surrogate", file(R"({"\ud800":1})"), "surrogate"},
      {"an array", file("[]"), "expected an object of tensors, found an array"},
      {"a string", file("\"a\""), "expected an object of tensors, found the string \"a\""},
      {"a deep array", file(repeated("[", 100000)),
       "expected an object of tensors, found an array"},
      {"a huge number", file(R"({"a":1e999})"), "not valid JSON"},
      {"a string of 3 MiB", file("{\"" + std::string(3 << 20, 'x') + "\":1}"),
       "a string or a run of white space of more than 2097152 bytes"},
      {"3 MiB of white space", file(std::string(3 << 20, ' ') + good),
       "a string or a run of white space of more than 2097152 bytes"},
  };
}

// "k0":0,"k1":0,…
std::string keys(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  }
  return text;
}

std::vector<BadFile> bad_types() {
  const auto file = [](const std::string& header) { return safetensors_bytes(header, 8); };
  return {
      {"tensor is a number", file(R"({"a":1})"),
       "near byte 7: expected an object with dtype, shape and data_offsets for tensor \"a\", found "
       "the "
       "number 1"},
      {"tensor is null", file(R"({"a":null})"), "for tensor \"a\", found null"},
      {"tensor is an array", file(R"({"a":[]})"), "for tensor \"a\", found an array"},
      {"no dtype", file(R"({"a":{"shape":[2],"data_offsets":[0,8]}})"),
       "tensor \"a\" has no dtype"},
      {"no shape", file(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})"),
       "tensor \"a\" has no shape"},
      {"no offsets", file(R"({"a":{"dtype":"F32","shape":[2]}})"),
       "tensor \"a\" has no data_offsets"},
      {"unknown key twice", file(R"({"a":{"strides":[1],"dtype":"F32","strides":null}})"),
       "tensor \"a\" has \"strides\" twice"},
      {"65 keys", file("{\"a\":{" + keys(65) + "}}"), "tensor \"a\" has more than 64 keys"},
      {"a key of 4097 bytes", file("{\"a\":{\"" + std::string(4097, 'k') + "\":1}}"),
       "tensor \"a\" has more than 64 keys, or one of more than 4096 bytes"},
      {"dtype twice", file(R"({"a":{"dtype":"F32","dtype":"F32"}})"),
       "tensor \"a\" has \"dtype\" twice"},
      {"shape twice", file(R"({"a":{"shape":[2],"shape":[2]}})"),
       "tensor \"a\" has \"shape\" twice"},
      {"offsets twice", file(R"({"a":{"data_offsets":[0,8],"data_offsets":[0,8]}})"),
       "tensor \"a\" has \"data_offsets\" twice"},
      {"unknown dtype", file(tensor(R"("F31")", "[2]", "[0,8]")),
       "tensor \"a\": expected a dtype of the format (F32, BF16, I64, …), found \"F31\""},
      {"dtype is a number", file(tensor("32", "[2]", "[0,8]")),
       "expected a dtype's name for tensor \"a\", found the number 32"},
      {"shape is a number", file(tensor(R"("F32")", "2", "[0,8]")),
       "expected an array of dimensions for tensor \"a\", found the number 2"},
      {"negative dimension", file(tensor(R"("F32")", "[-2]", "[0,8]")),
       "expected a dimension (an integer from 0 on) of tensor \"a\", found a negative number"},
      {"dimension with a point", file(tensor(R"("F32")", "[2.0]", "[0,8]")),
       "found the number \"2.0\""},
      {"dimension with an exponent", file(tensor(R"("F32")", "[2e0]", "[0,8]")),
       "found the number \"2e0\""},
      {"dimension is a string", file(tensor(R"("F32")", "[\"2\"]", "[0,8]")),
       "found the string \"2\""},
      {"dimension is an array", file(tensor(R"("F32")", "[[2]]", "[0,8]")), "found an array"},
      {"dimension beyond 63 bits", file(tensor(R"("F32")", "[9223372036854775808]", "[0,8]")),
       "the number 9223372036854775808 is larger than 2^63 - 1"},
      {"dimension beyond 64 bits", file(tensor(R"("F32")", "[18446744073709551616]", "[0,8]")),
       "found the number \"18446744073709551616\""},
      {"rank 17", file(tensor(R"("F32")", "[1" + repeated(",1", 16) + "]", "[0,4]")),
       "tensor \"a\" has more than 16 dimensions"},
      {"one offset", file(tensor(R"("F32")", "[2]", "[0]")), "expected two data_offsets, found 1"},
      {"three offsets", file(tensor(R"("F32")", "[2]", "[0,8,8]")),
       "expected two data_offsets, found more"},
      {"negative offset", file(tensor(R"("F32")", "[2]", "[-8,0]")), "expected a data offset"},
      {"offset beyond 63 bits", file(tensor(R"("F32")", "[2]", "[0,18446744073709551615]")),
       "the number 18446744073709551615 is larger than 2^63 - 1"},
      {"name with a line end", file(R"({"a\nb":{}})"),
       "a control character in the tensor name \"a?b\""},
      {"name with NUL", file(R"({"a\u0000":{}})"), "a control character in the tensor name \"a?\""},
      {"name of 4097 bytes", file("{\"" + std::string(4097, 'n') + "\":{}}"),
       "a tensor name of 4097 bytes, at most 4096 are allowed: \"nnn"},
      {"metadata is a string", file(R"({"__metadata__":"pt"})"),
       "expected an object of strings for \"__metadata__\", found the string \"pt\""},
      {"metadata twice, once null", file(R"({"__metadata__":null,"__metadata__":{}})"),
       "\"__metadata__\" occurs twice in the header"},
      {"metadata with a number", file(R"({"__metadata__":{"step":1}})"),
       "expected a string for \"step\" in \"__metadata__\", found the number 1"},
      {"metadata with an object", file(R"({"__metadata__":{"a":{}}})"),
       "\"__metadata__\", found an object"},
      {"metadata twice", file(R"({"__metadata__":{},"__metadata__":{}})"),
       "\"__metadata__\" occurs twice in the header"},
      {"metadata key twice", file(R"({"__metadata__":{"a":"1","a":"1"}})"),
       "\"a\" occurs twice in \"__metadata__\""},
  };
}

std::vector<BadFile> bad_offsets() {
  return {
      {"shape and offsets differ", safetensors_bytes(tensor(R"("F32")", "[3]", "[0,8]"), 8),
       "tensor \"a\": shape [3] of F32 takes 12 bytes, but data_offsets [0, 8] hold 8"},
      {"scalar of 8 bytes", safetensors_bytes(tensor(R"("F32")", "[]", "[0,8]"), 8),
       "shape [] of F32 takes 4 bytes, but data_offsets [0, 8] hold 8"},
      {"product overflows",
       safetensors_bytes(tensor(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0),
       "shape [4294967296, 4294967296] of F32 is larger than 2^63 bits"},
      {"product overflows, empty",
       safetensors_bytes(tensor(R"("U8")", "[0,4294967296,4294967296]", "[0,0]"), 0),
       "is larger than 2^63 bits"},
      {"bits overflow", safetensors_bytes(tensor(R"("F32")", "[1152921504606846976]", "[0,0]"), 0),
       "is larger than 2^63 bits"},
      {"half a byte", safetensors_bytes(tensor(R"("F4")", "[3]", "[0,2]"), 2),
       "shape [3] of F4 does not fill whole bytes: 12 bits"},
      {"end before begin", safetensors_bytes(tensor(R"("U8")", "[4]", "[8,4]"), 8),
       "data_offsets [8, 4] end before they begin"},
      {"does not start at 0", safetensors_bytes(tensor(R"("U8")", "[4]", "[4,8]"), 8),
       "tensor \"a\": data_offsets [4, 8] leave a hole: the data begins at byte 0"},
      {"overlap", safetensors_bytes(two("[0,4]", "[2,6]"), 6),
       "tensor \"b\": data_offsets [2, 6] overlap: tensor \"a\" ends at byte 4"},
      {"same bytes twice", safetensors_bytes(two("[0,4]", "[0,4]"), 4),
       "tensor \"b\": data_offsets [0, 4] overlap"},
      {"hole", safetensors_bytes(two("[0,4]", "[5,9]"), 9),
       "tensor \"b\": data_offsets [5, 9] leave a hole: tensor \"a\" ends at byte 4"},
      {"truncated data", safetensors_bytes(two("[0,4]", "[4,8]"), 7),
       "tensor \"b\": data_offsets [4, 8] reach beyond the file, which has 7 bytes of data: "
       "truncated?"},
      {"surplus data", safetensors_bytes(two("[0,4]", "[4,8]"), 9),
       "expected 8 bytes of data, found 9: bytes that belong to no tensor"},
      {"data without tensors", safetensors_bytes("{}", 1), "expected 0 bytes of data, found 1"},
      {"name twice, other bytes",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         2),
       "tensor \"a\" occurs twice in the header"},
      {"name twice, same bytes",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                         1),
       "tensor \"a\" occurs twice in the header"},
      {"name twice, empty",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                         R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                         0),
       "tensor \"a\" occurs twice in the header"},
  };
}

TEST(SafetensorsHeader, RefusesWhatCannotBeRight) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "bad.safetensors";
  for (const auto& table : {bad_lengths(), bad_json(), bad_types(), bad_offsets()}) {
    for (const BadFile& bad : table) {
      test::write_file(path, bad.bytes);
      const std::string error = error_of([&] { SafetensorsFile file(path); });
      EXPECT_THAT(error, StartsWith("65: " + path + ": ")) << bad.name;
      EXPECT_THAT(error, HasSubstr(bad.message)) << bad.name;
      EXPECT_LT(error.size(), path.size() + 500) << bad.name;
    }
  }
}

TEST(SafetensorsHeader, RefusesTooManyTensors) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "many.safetensors";
  const auto header_of = [](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
                R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    }
    return header + "}";
  };
  test::write_file(path, safetensors_bytes(header_of(1 << 17), 0));
  EXPECT_EQ(SafetensorsFile(path).entries().size(), size_t{1} << 17);
  test::write_file(path, safetensors_bytes(header_of((1 << 17) + 1), 0));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(path); }), HasSubstr("more than 131072 tensors"));
}

TEST(SafetensorsHeader, RefusesTooMuchMetadata) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "many.safetensors";
  std::string header = R"({"__metadata__":{)";
  for (int i = 0; i <= 1 << 14; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  }
  test::write_file(path, safetensors_bytes(header + "}}", 0));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(path); }),
              HasSubstr("more than 16384 entries in \"__metadata__\""));
}

TEST(SafetensorsHeader, AcceptsTheUnusualButLegal) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "odd.safetensors";
  const std::string header =
      " \n\t{\"z\" : {\"data_offsets\":[4,4],\"shape\":[2,0,3],\"dtype\":\"F64\"}, "
      "\"\\u00e9\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}, "
      "\"\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}, "
      "\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[4,7]}, "
      "\"__metadata__\":{}}  \n";
  test::write_file(path, safetensors_bytes(header, 7));
  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries()) {
    names.push_back(entry.name);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("", "é", "z", "q"));  // in the order of the bytes
  EXPECT_EQ(file.find("é")->numel(), 1);
  EXPECT_EQ(file.find("z")->numel(), 0);
  EXPECT_EQ(file.find("no"), nullptr);
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.read(*file.find("z")).sizes(), (std::vector<int64_t>{2, 0, 3}));

  test::write_file(path, safetensors_bytes("{}", 0));
  EXPECT_TRUE(SafetensorsFile(path).entries().empty());
}

// As the format's own reader does.
TEST(SafetensorsHeader, TakesNullMetadataForNoneAndPassesOverUnknownKeys) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "odd.safetensors";
  const std::string header =
      R"({"__metadata__":null,"a":{"x":[{"dtype":1}],"dtype":"F32","shape":[1],)"
      R"("checksum":null,"data_offsets":[0,4],"y":{"shape":[2]},"z":-1.5}})";
  test::write_file(path, safetensors_bytes(header, 4));
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.find("a")->shape, std::vector<int64_t>{1});
}

TEST(SafetensorsHeader, MissingFilesAndWhatIsNoFile) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { SafetensorsFile file(folder / "none"); }),
            "66: " + (folder / "none") + ": cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { SafetensorsFile file(folder.path()); }),
            "65: " + folder.path() + ": expected a regular file, found a folder");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "pipe"); }),
              HasSubstr("expected a regular file, found a pipe"));
}

// A small file with all that a header can have.
std::string seed_file() {
  return safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BOOL","shape":[2],"data_offsets":[24,26]},)"
      R"("c":{"dtype":"BF16","shape":[],"data_offsets":[26,28]}})",
      28);
}

// Changes one to four places: a bit, a byte to one that JSON gives meaning to, a cut, or a repeated
// piece.
std::string mutated(std::string bytes, std::mt19937& random) {
  static constexpr std::string_view kTokens = "{}[]\":,0123456789-eE.\\u\"dtFB \x00\xff";
  const auto below = [&](size_t limit) { return random() % std::max<size_t>(limit, 1); };
  for (size_t change = below(4) + 1; change > 0 && !bytes.empty(); --change) {
    const size_t at = below(bytes.size());
    switch (below(8)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(40)));
        break;
      case 2:
        bytes.erase(at, below(8));
        break;
      case 3:
        bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << below(8)));
        break;
      default:
        bytes[at] = kTokens[below(kTokens.size())];
    }
  }
  return bytes;
}

// Every file is refused with 65, or its tensors fill its data exactly and can all be read (but for
// other dtypes and bools).
TEST(SafetensorsHeader, SurvivesTwentyThousandMutations) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "mutated.safetensors";
  const std::string seed = seed_file();
  std::mt19937 random(20240229);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = mutated(seed, random);
    test::write_file(path, bytes);
    std::string error = error_of([&] {
      const SafetensorsFile file(path);
      ++accepted;
      uint64_t end = 0;
      for (const SafetensorsEntry& entry : file.entries()) {
        ASSERT_EQ(entry.begin_byte, end) << round;
        end = entry.end_byte;
      }
      ASSERT_LE(end, bytes.size());
      for (const SafetensorsEntry& entry : file.entries()) {
        const at::Tensor tensor = file.read(entry);
        ASSERT_EQ(tensor.nbytes(), entry.end_byte - entry.begin_byte) << round;
      }
    });
    ASSERT_TRUE(error == "none" || error.starts_with("65: " + path)) << round << ": " << error;
  }
  // Mutations of the data alone are many: the loop would prove nothing if all files were refused.
  EXPECT_GT(accepted, 500);
  EXPECT_LT(accepted, 10000);
}

}  // namespace
}  // namespace sherd
