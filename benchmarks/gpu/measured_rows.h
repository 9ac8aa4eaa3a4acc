#pragma once
// Steps that were measured on an H200 on 2026-11-26, as `sherd bench` ran them (jobs.py), and their
// settings as a plan takes them.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/io/hf_config.h"
#include "llm/plan/gpu_rates.h"
#include "llm/plan/run_plan.h"
#include "sherd/fully_shard.h"

namespace sherd::benchmarks {

struct MeasuredRow {
  std::string name;
  std::string model;  ///< a config.json, below the source folder
  std::function<void(llm::config::RunConfig&)> set;
  double step_seconds = 0;
  double peak_gib = 0;  ///< that LibTorch's allocator reserved
  /// Constants of the H200's table that are computed from this row's own figures.
  std::vector<llm::plan::StepConstant> own_constants = {};
  /// That the program made that day and makes no more.
  double launches_since = 0;
};

/// What `--master bfloat16 --reduce-dtype bf16 --moments bf16` asks for.
inline void all_in_bf16(llm::config::RunConfig& config) {
  config.precision.master = llm::config::MasterFormat::BFloat16;
  config.precision.reduce_dtype = llm::config::ReduceDtype::BFloat16;
  config.precision.moments = llm::config::MomentsDtype::BFloat16;
}

/// Samples of `tokens`, in micro-batches of `micro_batch`.
inline void batches_of(llm::config::RunConfig& config, std::int64_t tokens,
                       std::int64_t micro_batch, int accumulation = 1) {
  config.data.max_length = tokens;
  config.train.micro_batch = micro_batch;
  config.train.global_batch = micro_batch * accumulation;
}

/// What the program did that day, whatever its defaults are now.
inline void as_that_day(llm::config::RunConfig& config) {
  config.device.attention = llm::config::AttentionKernel::Flash;
  config.memory.loss_chunk_tokens = 512;
}

inline const std::vector<MeasuredRow>& measured_rows() {
  using llm::config::RunConfig;
  using llm::plan::StepConstant;
  static const std::string llama = "recipes/models/llama-3-8b/config.json";
  static const std::string bloom = "benchmarks/peers/shapes/bloom-560m.json";
  static const auto one_row = [](RunConfig& config) { batches_of(config, 8192, 1); };
  static const auto rows_of_bloom = [](RunConfig& config) { batches_of(config, 512, 16); };
  // The gradient of BLOOM's 250,880 rows of logits was rounded 256 rows at a time.
  constexpr double kRoundings = 980;
  static const std::vector<MeasuredRow> rows = {
      {"Llama-3-8B, all bf16, 1 × 8192",
       llama,
       [](RunConfig& config) {
         all_in_bf16(config);
         one_row(config);
       },
       0.857,
       86.7,
       {StepConstant::AdamWShare}},
      {"Llama-3-8B, 12 bytes, 1 × 8192", llama,
       [](RunConfig& config) {
         config.precision.master = llm::config::MasterFormat::Split;
         config.precision.moments = llm::config::MomentsDtype::BFloat16;
         one_row(config);
       },
       0.879, 118.6},
      {"Llama-3-8B, all bf16, 16 × 4 × 1024", llama,
       [](RunConfig& config) {
         all_in_bf16(config);
         batches_of(config, 1024, 4, 16);
       },
       5.43, 76.0},
      {"Llama-3-8B, masters and moments on the host, 1 × 8192",
       llama,
       [](RunConfig& config) {
         config.memory.offload.optimizer_on_host = true;
         one_row(config);
       },
       2.86,
       73.6,
       {StepConstant::LinkToHost}},
      {"BLOOM-560M, 16 × 512",
       bloom,
       rows_of_bloom,
       0.0939,
       18.3,
       {StepConstant::LaunchCost},
       kRoundings},
      {"BLOOM-560M, 16 × 512, CUDA graphs",
       bloom,
       [](RunConfig& config) {
         config.device.cuda_graphs = true;
         rows_of_bloom(config);
       },
       0.0896,
       25.0,
       {StepConstant::LaunchCost}}};
  return rows;
}

/// Of a row, with `settings` applied before its own, and what plans take of an H200.
inline llm::plan::RunPlan plan_of(const MeasuredRow& row, const std::string& source_folder,
                                  const std::function<void(llm::config::RunConfig&)>& settings,
                                  const llm::plan::GpuRates& rates) {
  llm::config::RunConfig config;
  config.precision.param_dtype = llm::config::ParamDtype::BFloat16;
  settings(config);
  row.set(config);
  llm::io::HfConfig model = llm::io::read_hf_config(source_folder + "/" + row.model, {});
  auto shapes = sherd::on_meta([&] { return llm::io::build_model(model); });
  const std::int64_t context = shapes->context_length();
  return llm::plan::plan_run(config, {std::move(model), std::move(shapes), 0},
                             {.device = llm::plan::device_of_name("h200-141g"), .gpu_rates = rates},
                             llm::plan::planned_batches(config, context));
}

/// Seconds that `row` is planned to have taken that day.
inline double seconds_that_day(const MeasuredRow& row, const std::string& source_folder,
                               const llm::plan::GpuRates& rates) {
  return plan_of(row, source_folder, as_that_day, rates).time.step_seconds +
         row.launches_since * rates.launch_seconds;
}

}  // namespace sherd::benchmarks
