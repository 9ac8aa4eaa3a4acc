#include "llm/doctor/diagnosis.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::doctor {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Nothing to complain of.
Machine good() {
  Machine machine;
  machine.processor = {"X", 4, 4, 0.1, {}, {"avx2", "avx512f"}, "avx512_bf16", "avx512_bf16", ""};
  machine.memory.total_bytes = std::uint64_t{64} << 30;
  machine.memory.available_bytes = std::uint64_t{60} << 30;
  machine.interfaces = {{"lo", {"127.0.0.1"}, true, true, {}}};
  machine.hub.cache = "/cache";
  return machine;
}

TEST(Doctor, HasNothingToSayOfAGoodMachine) {
  const Diagnosis found = diagnose(good());
  EXPECT_THAT(found.slow, IsEmpty());
  EXPECT_THAT(found.faults, IsEmpty());
  EXPECT_EQ(found.param_dtype, "bfloat16");
  EXPECT_EQ(found.ranks, 4);
  EXPECT_EQ(found.threads, 1);
}

TEST(Doctor, RecommendsWhatIsLeftOfTheCores) {
  Machine machine = good();
  machine.processor.cores = 32;
  machine.processor.physical_cores = 16;
  EXPECT_EQ(diagnose(machine).ranks, 4);
  EXPECT_EQ(diagnose(machine).threads, 4);
  machine.processor.busy_cores = 8;
  EXPECT_EQ(diagnose(machine).threads, 2);
  machine.processor.quota_cores = 2.5;
  machine.processor.busy_cores = 0;
  EXPECT_EQ(diagnose(machine).ranks, 2);
  machine.processor.busy_cores = 32;
  EXPECT_EQ(diagnose(machine).ranks, 1);
  EXPECT_EQ(diagnose(machine).threads, 1);
}

TEST(Doctor, NamesWhatWillBeSlow) {
  const auto slow_with = [](const auto& change) {
    Machine machine = good();
    change(machine);
    EXPECT_THAT(diagnose(machine).faults, IsEmpty());
    return diagnose(machine).slow;
  };
  EXPECT_THAT(slow_with([](Machine& m) { m.processor.isa = "avx2"; }),
              Contains(HasSubstr("limits it to avx2: check SHERD_CPU_ISA")));
  EXPECT_THAT(slow_with([](Machine& m) { m.processor.isa = m.processor.best_isa = "avx2"; }),
              Contains(HasSubstr("no instructions for bf16")));
  EXPECT_THAT(slow_with([](Machine& m) { m.processor.isa = m.processor.best_isa = "none"; }),
              Contains(HasSubstr("no AVX2")));
  EXPECT_THAT(slow_with([](Machine& m) { m.processor.busy_cores = 2.5; }),
              Contains(HasSubstr("2.5 of 4 cores are busy")));
  EXPECT_THAT(slow_with([](Machine& m) { m.processor.quota_cores = 1.5; }),
              Contains(HasSubstr("allows the time of 1.5 of 4 cores")));
  EXPECT_THAT(slow_with([](Machine& m) { m.memory.available_bytes = std::uint64_t{2} << 30; }),
              Contains(HasSubstr("2.0 GiB of memory are available")));
  EXPECT_THAT(slow_with([](Machine& m) {
                m.gpus.found = {{"NVIDIA H100", {}, "580.1"}};
                m.gpus.problem = "the NVIDIA driver is too old.";
              }),
              Contains(HasSubstr("GPUs are left idle: the NVIDIA driver is too old.")));
  EXPECT_THAT(slow_with([](Machine& m) {
                m.gpus.found = {{"NVIDIA H100", {}, "580.1"}};
                m.gpus.usable = 1;
              }),
              Not(Contains(HasSubstr("GPU"))));
  EXPECT_THAT(slow_with([](Machine& m) { m.threads_asked = 8; }),
              Contains(HasSubstr("OMP_NUM_THREADS=8")));
}

TEST(Doctor, TellsOfGpus) {
  Machine machine = good();
  const auto text = [&] { return to_text(machine, diagnose(machine), 120); };
  EXPECT_THAT(text(), HasSubstr("\nGPUs           none; the program computes on the CPU\n"));
  machine.gpus.found = {{"NVIDIA H100", std::uint64_t{80} << 30, "580.1"}, {"NVIDIA T4", {}, ""}};
  machine.gpus.usable = 2;
  machine.gpus.nccl = "2.27.3";
  EXPECT_THAT(text(), HasSubstr("\nGPUs           NVIDIA H100 (80.0 GiB), NVIDIA T4; driver 580.1; "
                                "the program computes on 2; NCCL 2.27.3\n"));
  EXPECT_THAT(to_json(machine, diagnose(machine)),
              HasSubstr(R"("gpus":{"found":[{"name":"NVIDIA H100","memory_bytes":85899345920,)"
                        R"("driver":"580.1"},{"name":"NVIDIA T4","memory_bytes":null,)"
                        R"("driver":""}],"usable":2,"problem":null,"nccl":"2.27.3"})"));
}

TEST(Doctor, FitsIntoTheColumnsOfATerminal) {
  Machine machine = good();
  machine.limits = {{"open files", 1024},
                    {"address space bytes", {}},
                    {"locked memory bytes", std::uint64_t{8} << 20}};
  machine.processor.busy_cores = 2.5;
  const std::string text = to_text(machine, diagnose(machine), 60);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 60U) << line;
  }
  EXPECT_THAT(text, HasSubstr("\nlimits         open files 1024, address space unlimited,\n"
                              "               locked memory 8 MiB\n"));
  EXPECT_THAT(text, HasSubstr("\nslow           2.5 of 4 cores are busy with other work:\n"
                              "               ranks wait for the slowest of them"));
}

TEST(Doctor, NamesWhatWillNotWork) {
  const auto fault_with = [](const auto& change) {
    Machine machine = good();
    change(machine);
    EXPECT_THAT(to_json(machine, diagnose(machine)), HasSubstr("{\"ok\":false,"));
    return diagnose(machine).faults;
  };
  EXPECT_THAT(fault_with([](Machine& m) { m.interfaces.clear(); }),
              Contains(HasSubstr("no loopback interface is up")));
  EXPECT_THAT(fault_with([](Machine& m) { m.interfaces[0].is_up = false; }),
              Contains(HasSubstr("no loopback interface is up")));
  EXPECT_THAT(fault_with([](Machine& m) { m.memory.available_bytes = 1000; }),
              Contains(HasSubstr("0.00 GiB of memory are available")));
  EXPECT_THAT(fault_with([](Machine& m) { m.processor.isa_fault = "SHERD_CPU_ISA=mmx"; }),
              Contains("SHERD_CPU_ISA=mmx"));
  EXPECT_THAT(fault_with([](Machine& m) { m.hub.fault = "/cache is not a folder"; }),
              Contains(HasSubstr("sherd fetch: /cache is not a folder")));
}

}  // namespace
}  // namespace llm::doctor
