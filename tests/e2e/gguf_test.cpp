// Models as GGUF files and back, by the program.

#include "tests/e2e/training.h"
#include "tests/support/test_data.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

const Arguments kOnce = {"--prompt", "Once upon a time", "--max-new-tokens", "24"};

// What a run has learned survives both ways: the same weights, and the same text.
TEST(Gguf, OfARunComesBackAsTheSameModel) {
  const TempFolder folder;
  const std::string run = folder.path() / "run", file = folder.path() / "out/mine.gguf";
  const std::string back = folder.path() / "back";
  expect_code(0, train(run, "2"));
  const Ended exported = expect_code(0, {"export", run, "--gguf", file, "--dtype", "f32"});
  EXPECT_THAT(unwrapped(exported.err + exported.out),
              HasSubstr(file + " and " + (folder.path() / "out/mine.Modelfile").string()));
  EXPECT_THAT(read_file(folder.path() / "out/mine.Modelfile"), HasSubstr("FROM ./mine.gguf\n"));
  const Ended imported = expect_code(0, {"import", file, back});
  EXPECT_THAT(unwrapped(imported.err + imported.out), HasSubstr("(llama) to " + back));
  EXPECT_EQ(expect_code(0, Arguments{"generate", run} + kOnce).out,
            expect_code(0, Arguments{"generate", back} + kOnce).out);
}

TEST(Gguf, OfAQwenModelComesBackAsTheSameFile) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const TempFolder folder;
  const std::string model = folder.path() / "qwen2", again = folder.path() / "again";
  expect_code(0, {"import", *extra_data("gguf/qwen2") / "model.gguf", model});
  for (const char* dtype : {"f32", "f16", "bf16", "q8_0"}) {
    expect_code(0, {"export", model, "--gguf", (folder.path() / dtype).string(), "--dtype", dtype});
  }
  expect_code(0, {"import", folder.path() / "f32/model.gguf", again});
  expect_code(0, {"export", again, "--gguf", folder.path() / "second", "--dtype", "f32"});
  // But for the name of the folder the two files are one.
  const std::string one = read_file(folder.path() / "f32/model.gguf");
  const std::string other = read_file(folder.path() / "second/model.gguf");
  EXPECT_EQ(one.substr(one.size() / 2), other.substr(other.size() - (one.size() - one.size() / 2)));
  EXPECT_EQ(expect_code(0, Arguments{"generate", model} + kOnce).out,
            expect_code(0, Arguments{"generate", again} + kOnce).out);
}

TEST(Gguf, FaultsHaveTheirCodes) {
  const TempFolder folder;
  const auto refuse = [](int code, const Arguments& arguments, const std::string& part) {
    EXPECT_THAT(unwrapped(expect_code(code, arguments).err), HasSubstr(part));
  };
  const std::string out = folder.path() / "out", file = folder.path() / "cut.gguf";
  refuse(64, {"export", kModel}, "--out or --gguf is required");
  refuse(64, {"export", kModel, "--gguf", file, "--out", out}, "--out excludes --gguf");
  refuse(64, {"export", kModel, "--out", out, "--dtype", "q8_0"},
         "--dtype q8_0 is a type of GGUF files: give --gguf FILE in place of --out");
  refuse(64, {"export", kModel, "--gguf", file, "--dtype", "q4_0"}, "q4_0 must be one of bf16");
  refuse(66, {"import", file, out}, "cut.gguf");
  expect_code(0, {"export", kModel, "--gguf", folder.path() / "whole.gguf"});
  const std::string whole = read_file(folder.path() / "whole.gguf");
  std::ofstream(file, std::ios::binary) << whole.substr(0, whole.size() / 2);
  refuse(65, {"import", file, out}, "Was it copied or downloaded in full?");
  refuse(73, {"export", kModel, "--gguf", folder.path() / "whole.gguf"}, "exists already");
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(listing(folder.path()).size(), 3U);  // both files and a Modelfile
}

}  // namespace
}  // namespace sherd::test
