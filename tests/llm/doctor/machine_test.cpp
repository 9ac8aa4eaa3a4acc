#include "llm/doctor/machine.h"

#include <gmock/gmock.h>

namespace llm::doctor {
namespace {

TEST(BusyCores, AreCountedAmongTheUsable) {
  const std::string before =
      "cpu  0 0 0 0\ncpu0 100 0 0 900 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0\ncpu2 5 0 0 5 0 0 0 0\n";
  const std::string after =
      "cpu  0 0 0 0\ncpu0 140 0 5 930 20 0 5 0\ncpu1 0 0 0 1100 0 0 0 0\ncpu2 95 0 0 15 0 0 0 0\n";
  EXPECT_DOUBLE_EQ(busy_cores_between(before, after, {0, 1}), 0.5);
  EXPECT_DOUBLE_EQ(busy_cores_between(before, after, {0, 1, 2}), 1.4);
  EXPECT_DOUBLE_EQ(busy_cores_between("", "", {0}), 0);
}

TEST(Gpus, AreReadFromNvidiaSmi) {
  const std::vector<Gpu> gpus =
      gpus_in("NVIDIA H100 80GB HBM3, 81559, 580.65\nGRID X, [N/A], 1\nno line of a GPU\n");
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpus[0].memory_bytes, std::uint64_t{81559} << 20U);
  EXPECT_EQ(gpus[0].driver, "580.65");
  EXPECT_EQ(gpus[1].memory_bytes, std::nullopt);
}

TEST(InstructionSets, AreThoseThatMatter) {
  EXPECT_THAT(instruction_sets_of("model name\t: x\nflags\t\t: fpu avx2 sse fma avx512_bf16 \n"),
              testing::ElementsAre("avx2", "fma", "avx512_bf16"));
  EXPECT_TRUE(instruction_sets_of("no such line").empty());
}

}  // namespace
}  // namespace llm::doctor
