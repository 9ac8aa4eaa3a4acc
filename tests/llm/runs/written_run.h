#pragma once
// The folder of a run, written line by line.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fmt/core.h"
#include "llm/config/run_config.h"

namespace llm::runs {

/// A run of two epochs of two steps: losses 4, 3, 2, 1, each step 8 samples in half a second, and
/// an evaluation of 10 samples in a second after each epoch.
struct WrittenRun {
  std::string name = "first";
  int ranks = 1;
  double step_seconds = 0.5;
  double lr = 1e-3;
  std::int64_t global_batch = 8;
  std::string data_sha256 = "d1";
  std::string isa = "avx2";
  std::string more_of_a_step = "";  ///< of each step's line: `,"mfu":0.5`
  std::string eval_data = "";       ///< more of each evaluation's line: `,"data_sha256":"e1"`

  [[nodiscard]] std::string step(int number) const {
    return fmt::format(
        R"({{"step":{0},"loss":{1},"grad_norm":1.0,"lr":0.1,"tokens":100,"supervised_tokens":10,)"
        R"("step_seconds":{2},"peak_rank_bytes":{0}000000,"data_wait_seconds":0.1,"epoch":{3},)"
        R"("samples":{4}{5}}})",
        number, 5 - number, step_seconds, number / 2.0, global_batch, more_of_a_step);
  }

  [[nodiscard]] static std::string evaluation(int step, double loss, double em,
                                              const std::string& more = "") {
    return fmt::format(
        R"({{"event":"evaluation","step":{},"samples":10,"data":"dev.json","loss":{},"em":{},)"
        R"("f1":{},"seconds":1.0{}}})",
        step, loss, em, em + 5, more);
  }

  [[nodiscard]] std::vector<std::string> lines() const {
    return {fmt::format(R"({{"event":"begin","step":0,"ranks":{},"hosts":1,"threads":1,)"
                        R"("isa":"{}","data_sha256":"{}"}})",
                        ranks, isa, data_sha256),
            step(1),
            step(2),
            R"({"event":"checkpoint","step":2,"seconds":0.25})",
            evaluation(2, 3.5, 10, eval_data),
            step(3),
            step(4),
            evaluation(4, 2.5, 20, eval_data)};
  }

  /// Returns its path.
  [[nodiscard]] std::filesystem::path write(const std::filesystem::path& folder,
                                            const std::string& end = "") const {
    const std::filesystem::path path = folder / name;
    std::filesystem::create_directories(path);
    config::RunConfig config;
    config.data.train = {{.path = "train.json"}};
    config.optim.lr = lr;
    config.train.global_batch = global_batch;
    std::ofstream(path / "config.toml") << config::to_toml(config);
    std::ofstream log(path / "log.jsonl");
    for (const std::string& line : lines()) {
      log << line << "\n";
    }
    log << end;
    return path;
  }
};

}  // namespace llm::runs
