// `sherd doctor`, on whatever machine this is.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(Doctor, SaysWhatIsHereInWordsAndAsJson) {
  const TempFolder folder;
  const Arguments variables = {"HF_HOME=" + folder.path().string(), "HF_TOKEN=hf_canary"};
  const Ended words = expect_code(0, {"doctor"}, variables);
  for (const char* const part :
       {"processor ", "\ncores ", "path taken: ", "\nmemory ", "\nlimits ", "\nGPUs ", "\nnetwork ",
        "lo 127.0.0.1", "\nhub cache ", "HF_HOME, HF_TOKEN set", "\nrecommended "}) {
    EXPECT_THAT(words.out, HasSubstr(part));
  }
  const Ended ended = expect_code(0, {"doctor", "--json"}, variables);
  EXPECT_THAT(words.out + ended.out, testing::Not(HasSubstr("canary")));
  const auto found = nlohmann::json::parse(ended.out);
  EXPECT_TRUE(found.at("ok").get<bool>());
  const auto& processor = found.at("processor");
  EXPECT_GE(processor.at("cores").get<int>(), processor.at("physical_cores").get<int>());
  EXPECT_GT(found.at("memory").at("available_bytes").get<std::uint64_t>(), 1U << 20U);
  EXPECT_GT(found.at("limits").at("open files").get<std::uint64_t>(), 60U);
  EXPECT_GE(found.at("recommended").at("ranks").get<int>(), 1);
  EXPECT_TRUE(fs::is_empty(folder.path()));  // it reads only
}

TEST(Doctor, KnowsTheIsaThatIsTaken) {
  const Ended ended = expect_code(0, {"doctor", "--json"}, {"SHERD_CPU_ISA=none", "HF_HOME=/tmp"});
  const auto found = nlohmann::json::parse(ended.out);
  EXPECT_EQ(found.at("processor").at("isa"), "none");
  EXPECT_EQ(found.at("recommended").at("param_dtype"), "float32");
}

TEST(Doctor, EndsWithOneWhereSomethingWillNotWork) {
  const Ended cache = expect_code(1, {"doctor"}, {"HF_HOME=/dev/null/x"});
  EXPECT_THAT(cache.out, HasSubstr("will not work  sherd fetch: /dev/null is not a folder"));
  const Ended isa = expect_code(1, {"doctor"}, {"SHERD_CPU_ISA=mmx", "HF_HOME=/tmp"});
  EXPECT_THAT(isa.out, HasSubstr("SHERD_CPU_ISA"));
  expect_code(64, {"doctor", "now"});
}

}  // namespace
}  // namespace sherd::test
