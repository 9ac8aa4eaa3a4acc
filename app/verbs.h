#pragma once
// The verbs of the program. Each one maps flags to structs, calls the libraries below, and prints.

#include <functional>

#include <CLI/CLI.hpp>

namespace app {

/// What a command line asks for: returns the exit code of the process.
using Verb = std::function<int()>;

/// Adds the verb to the command line; its callback sets `chosen`. The reader of the command line
/// is gone when that is called.
void add_train(CLI::App& program, Verb& chosen);
void add_eval(CLI::App& program, Verb& chosen);
void add_generate(CLI::App& program, Verb& chosen);
void add_chat(CLI::App& program, Verb& chosen);
void add_export(CLI::App& program, Verb& chosen);
void add_import(CLI::App& program, Verb& chosen);
void add_bandwidth(CLI::App& program, Verb& chosen);
void add_bench(CLI::App& program, Verb& chosen);
void add_check(CLI::App& program, Verb& chosen);
void add_plan(CLI::App& program, Verb& chosen);
void add_sweep(CLI::App& program, Verb& chosen);
void add_data(CLI::App& program, Verb& chosen);
void add_compare(CLI::App& program, Verb& chosen);
void add_watch(CLI::App& program, Verb& chosen);
void add_launch(CLI::App& program, Verb& chosen);
void add_slurm(CLI::App& program, Verb& chosen);
void add_fetch(CLI::App& program, Verb& chosen);
void add_recipes(CLI::App& program, Verb& chosen);
void add_doctor(CLI::App& program, Verb& chosen);

/// The program golden_check: what its main() returns.
int golden_check(int argc, char** argv);

}  // namespace app
