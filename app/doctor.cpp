// sherd doctor [--json]

#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <dlfcn.h>
#include <fmt/core.h>

#include "app/live_line.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/doctor/diagnosis.h"
#include "llm/setup/peak_memory.h"
#include "ops/cpu/isa.h"
#include "sherd/backend.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::ops::cpu::name_of;

// Of the library that LibTorch brings, if it is here: 22703 is 2.27.3.
std::string nccl_version() {
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int version = 0;
  return get == nullptr || get(&version) != 0
             ? ""
             : fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

int doctor(bool json) {
  llm::doctor::Machine machine = llm::doctor::look_around();
  machine.memory.available_bytes =
      static_cast<std::uint64_t>(llm::setup::available_memory_bytes(/*local_ranks=*/1));
  const sherd::Gpus& gpus = sherd::gpus();
  machine.gpus.problem = gpus.problem;
  machine.gpus.usable = gpus.problem.empty() ? static_cast<int>(gpus.all.size()) : 0;
  machine.gpus.nccl = nccl_version();
  machine.processor.best_isa = name_of(sherd::ops::cpu::machine_isa());
  try {
    machine.processor.isa = name_of(sherd::ops::cpu::allowed_isa());
  } catch (const sherd::Error& error) {
    machine.processor.isa_fault = error.what();
  }
  const llm::doctor::Diagnosis found = llm::doctor::diagnose(machine);
  constexpr int kColumnsOfAFile = std::numeric_limits<int>::max();  // read by programs too
  print_result(json ? to_json(machine, found)
                    : to_text(machine, found, terminal_columns(kColumnsOfAFile)));
  return found.faults.empty() ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "doctor", "Report what this machine offers for a run, what to set, and what will be slow");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "print one line of JSON on standard output");
  verb->footer("Reads only. Exit code 1: something will not work.");
  verb->callback([json, &chosen] { chosen = [json] { return doctor(*json); }; });
}

}  // namespace app
