#pragma once
// What a machine's facts mean for runs.

#include <string>
#include <vector>

#include "llm/doctor/machine.h"

namespace llm::doctor {

struct Diagnosis {
  std::string param_dtype;          ///< recommended: "bfloat16" or "float32"
  int ranks = 1;                    ///< recommended, of this host
  int threads = 1;                  ///< of each
  std::vector<std::string> slow;    ///< what will be slower than it could be, and why
  std::vector<std::string> faults;  ///< what will not work, and what to do
};

[[nodiscard]] Diagnosis diagnose(const Machine& machine);

/// For people, on a terminal of so many columns: the facts, then what follows from them.
[[nodiscard]] std::string to_text(const Machine& machine, const Diagnosis& diagnosis, int columns);
/// One line: `ok`, what was found, `recommended`, `slow`, `faults`.
[[nodiscard]] std::string to_json(const Machine& machine, const Diagnosis& diagnosis);

}  // namespace llm::doctor
