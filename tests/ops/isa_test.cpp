#include "ops/cpu/isa.h"

#include <cstdlib>

#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/cpu/isa_agreement.h"
#include "sherd/error.h"
#include "tests/support/ranks.h"

namespace sherd::ops::cpu {
namespace {

using testing::HasSubstr;

TEST(Isa, NamesAreReadBack) {
  for (int i = 0; i < kIsaCount; ++i) {
    const auto isa = static_cast<Isa>(i);
    EXPECT_EQ(isa_of(name_of(isa)), isa);
  }
  EXPECT_EQ(isa_of("avx3"), std::nullopt);
  EXPECT_EQ(isa_of(""), std::nullopt);
}

TEST(Isa, IsTheBestThatTheProcessorHas) {
  EXPECT_EQ(best_isa({}), Isa::None);
  EXPECT_EQ(best_isa({.avx2 = true}), Isa::Avx2);
  EXPECT_EQ(best_isa({.avx2 = true, .avx512 = true}), Isa::Avx512);
  EXPECT_EQ(best_isa({.avx2 = true, .avx512 = true, .avx512_bf16 = true}), Isa::Avx512Bf16);
  EXPECT_EQ(best_isa({.avx2 = true, .avx512 = true, .avx512_bf16 = true, .amx = true}), Isa::Amx);
}

// A hypervisor may hide any feature.
TEST(Isa, NeedsAllOfThePathsBelow) {
  EXPECT_EQ(best_isa({.avx512 = true, .avx512_bf16 = true, .amx = true}), Isa::None);
  EXPECT_EQ(best_isa({.avx2 = true, .avx512_bf16 = true, .amx = true}), Isa::Avx2);
  EXPECT_EQ(best_isa({.avx2 = true, .avx512 = true, .amx = true}), Isa::Avx512);
}

TEST(Isa, IsTheMachinesWithoutLimits) {
  for (int i = 0; i < kIsaCount; ++i) {
    EXPECT_EQ(choose_isa(static_cast<Isa>(i), {}), static_cast<Isa>(i));
  }
}

TEST(Isa, ObeysItsVariableUpToTheMachines) {
  for (int machine = 0; machine < kIsaCount; ++machine) {
    for (int wanted = 0; wanted < kIsaCount; ++wanted) {
      const IsaLimits limits{.sherd = name_of(static_cast<Isa>(wanted)), .aten = "", .onednn = ""};
      if (wanted <= machine) {
        EXPECT_EQ(choose_isa(static_cast<Isa>(machine), limits), static_cast<Isa>(wanted));
      } else {
        EXPECT_THROW((void)choose_isa(static_cast<Isa>(machine), limits), Error);
      }
    }
  }
}

void expect_refusal(const std::string& value, const std::string& reason) {
  try {
    (void)choose_isa(Isa::Avx512, {.sherd = value, .aten = "", .onednn = ""});
    FAIL() << value << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("SHERD_CPU_ISA is \"" + value + "\", which " + reason));
    EXPECT_THAT(error.what(), HasSubstr("none, avx2, avx512"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("amx, ")));
  }
}

TEST(Isa, RefusesAnyOtherValueOfItsVariable) {
  expect_refusal("amx", "this processor cannot run");
  expect_refusal("avx3", "is not the name of a CPU path");
  expect_refusal("AVX2", "is not the name of a CPU path");
}

Isa with_aten(const char* value) {
  return choose_isa(Isa::Amx, {.sherd = "", .aten = value, .onednn = ""});
}
Isa with_onednn(const char* value) {
  return choose_isa(Isa::Amx, {.sherd = "", .aten = "", .onednn = value});
}

TEST(Isa, FollowsTheVariablesOfLibTorchAndOneDnn) {
  EXPECT_EQ(with_aten("default"), Isa::None);
  EXPECT_EQ(with_aten("avx2"), Isa::Avx2);
  EXPECT_EQ(with_aten("avx512"), Isa::Amx);
  EXPECT_EQ(with_aten("anything"), Isa::Amx);
  EXPECT_EQ(with_onednn("SSE41"), Isa::None);
  EXPECT_EQ(with_onednn("AVX"), Isa::None);
  EXPECT_EQ(with_onednn("AVX2"), Isa::Avx2);
  EXPECT_EQ(with_onednn("AVX2_VNNI_2"), Isa::Avx2);
  EXPECT_EQ(with_onednn("AVX512_CORE"), Isa::Avx512);
  EXPECT_EQ(with_onednn("avx512_core_vnni"), Isa::Avx512);
  EXPECT_EQ(with_onednn("AVX512_CORE_BF16"), Isa::Avx512Bf16);
  EXPECT_EQ(with_onednn("AVX512_CORE_FP16"), Isa::Avx512Bf16);
  EXPECT_EQ(with_onednn("AVX10_1_512"), Isa::Avx512Bf16);
  EXPECT_EQ(with_onednn("AVX512_CORE_AMX"), Isa::Amx);
  EXPECT_EQ(with_onednn("DEFAULT"), Isa::Amx);
  EXPECT_EQ(with_onednn("ALL"), Isa::Amx);
}

TEST(Isa, IsTheLeastOfAllLimits) {
  EXPECT_EQ(choose_isa(Isa::Amx, {.sherd = "avx512", .aten = "avx2", .onednn = "AVX512_CORE_BF16"}),
            Isa::Avx2);
  EXPECT_EQ(choose_isa(Isa::Avx2, {.sherd = "", .aten = "avx2", .onednn = "AVX512_CORE"}),
            Isa::Avx2);
}

TEST(Isa, RefusesWhatWouldMakeLibTorchUseMissingInstructions) {
  for (const auto& [machine, aten] : {std::pair(Isa::Avx2, "avx512"), {Isa::None, "avx2"}}) {
    try {
      (void)choose_isa(machine, {.sherd = "", .aten = aten, .onednn = ""});
      FAIL() << aten << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      EXPECT_THAT(error.what(), HasSubstr("ATEN_CPU_CAPABILITY is \"" + std::string(aten) + "\""));
    }
  }
}

TEST(Isa, OfSeveralRanksIsTheLeast) {
  EXPECT_EQ(least_of({"amx"}), Isa::Amx);
  EXPECT_EQ(least_of({"amx", "avx2", "avx512_bf16"}), Isa::Avx2);
  EXPECT_EQ(least_of({"none", "amx"}), Isa::None);
  try {
    (void)least_of({"amx", "avx10"});
    FAIL() << "an unknown name was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::RanksDisagree);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 computes on the path \"avx10\""));
  }
}

TEST(Isa, IsSaidWhereRanksDiffer) {
  EXPECT_EQ(isa_notice({"amx", "amx"}), "");
  EXPECT_EQ(
      isa_notice({"amx", "avx512", "avx2"}),
      "all ranks use the CPU path \"avx2\", the best that rank 2 has; rank 0 supports \"amx\"");
}

TEST(Isa, IsAgreedBetweenRanks) {
  const Isa before = isa();
  test::run_ranks(2, [&](World world) { EXPECT_EQ(agree_on_isa(world), ""); });
  EXPECT_EQ(isa(), before);
}

// LibTorch looks at the same processor: it has AVX-512 or AVX2 where this does.
TEST(Isa, OfThisMachineIsWhatLibTorchFinds) {
  const std::string aten = at::get_cpu_capability();
  const char* limited = std::getenv("ATEN_CPU_CAPABILITY");
  if (limited == nullptr) {
    EXPECT_EQ(machine_isa() >= Isa::Avx512, aten == "AVX512");
    EXPECT_EQ(machine_isa() == Isa::Avx2, aten == "AVX2");
  }
  EXPECT_LE(isa(), machine_isa());
  EXPECT_EQ(isa_name(), name_of(isa()));
}

TEST(Isa, AboveTheMachinesIsRefused) {
  if (machine_isa() == Isa::Amx) {
    GTEST_SKIP() << "no path is above this machine's";
  }
  const auto above = static_cast<Isa>(static_cast<int>(machine_isa()) + 1);
  EXPECT_THROW(use_isa(above), Error);
}

}  // namespace
}  // namespace sherd::ops::cpu
