#pragma once
// What the measuring programs share: which machine it is, and their two flags.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace sherd::benchmarks {

/// What follows the colon of /proc/cpuinfo's first line of that name.
inline std::string cpu_field(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + "\t")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

/// For example "AMD EPYC (family 26, model 2)": names alone do not tell generations apart.
inline std::string processor() {
  return cpu_field("model name") + " (family " + cpu_field("cpu family") + ", model " +
         cpu_field("model") + ")";
}

struct Flags {
  int rounds = 0;
  bool json = false;
};

/// [--rounds N] [--json]. Ends the program where there is anything else.
inline Flags flags_of(int argc, char** argv, int default_rounds) {
  Flags flags{default_rounds, false};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      flags.json = true;
    } else if (argument == "--rounds" && i + 1 < argc) {
      flags.rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: %s [--rounds N] [--json]\n", argv[0]);
      std::exit(64);
    }
  }
  return flags;
}

}  // namespace sherd::benchmarks
