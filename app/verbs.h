#pragma once
// The verbs of the program. Each one maps flags to structs, calls the libraries below, and prints.

#include <CLI/CLI.hpp>

namespace app {

/// Adds the verb to the command line; its callback sets `exit_code`.
void add_train(CLI::App& program, int& exit_code);
void add_eval(CLI::App& program, int& exit_code);
void add_generate(CLI::App& program, int& exit_code);
void add_chat(CLI::App& program, int& exit_code);
void add_export(CLI::App& program, int& exit_code);
void add_bandwidth(CLI::App& program, int& exit_code);
void add_bench(CLI::App& program, int& exit_code);
void add_check(CLI::App& program, int& exit_code);
void add_plan(CLI::App& program, int& exit_code);
void add_sweep(CLI::App& program, int& exit_code);
void add_data(CLI::App& program, int& exit_code);
void add_compare(CLI::App& program, int& exit_code);
void add_watch(CLI::App& program, int& exit_code);
void add_launch(CLI::App& program, int& exit_code);
void add_slurm(CLI::App& program, int& exit_code);
void add_fetch(CLI::App& program, int& exit_code);
void add_recipes(CLI::App& program, int& exit_code);
void add_doctor(CLI::App& program, int& exit_code);

}  // namespace app
