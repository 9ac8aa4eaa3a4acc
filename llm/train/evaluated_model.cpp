#include "llm/train/evaluated_model.h"

#include <algorithm>
#include <filesystem>

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "files/system_text.h"
#include "llm/config/run_config.h"
#include "llm/io/hf_config.h"
#include "llm/train/agreement.h"
#include "llm/train/checkpoints.h"
#include "llm/train/chosen_checkpoint.h"
#include "llm/train/load_model.h"
#include "llm/train/options_of_config.h"
#include "llm/train/run_note.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/init.h"

namespace llm::train {

namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "manifest.json", ignored);
}

// The output folder: the path itself or the one its checkpoint is in; empty if it is neither.
fs::path run_folder_of(const fs::path& path) {
  std::error_code ignored;
  if (is_checkpoint(path)) {
    return fs::absolute(path / ".").parent_path().parent_path().parent_path();
  }
  const bool is_model = fs::exists(path / "config.json", ignored);
  const bool is_run =
      fs::exists(path / "checkpoints", ignored) || fs::exists(path / "config.toml", ignored);
  return !is_model && is_run ? path : fs::path();
}

void require_checkpoint(const fs::path& run) {
  if (Checkpoints(run).complete_steps().empty()) {
    throw sherd::Error(
        sherd::ExitCode::InputMissing,
        fmt::format("'{}' is a run without a complete checkpoint, so nothing of what "
                    "it learned is there: checkpoint.every and checkpoint.at_end "
                    "say when it saves",
                    run.string()));
  }
}

// A whole parameter of a checkpoint, in fp32; undefined if it has none of that name.
at::Tensor read_parameter(const std::string& folder, const sherd::CheckpointManifest& manifest,
                          const std::string& name) {
  const auto found = manifest.parameters.find(name);
  if (found == manifest.parameters.end()) {
    return {};
  }
  at::Tensor whole = at::empty(found->second.shape, at::kFloat);
  float* next = whole.mutable_data_ptr<float>();
  sherd::read_checkpoint_values(folder, manifest, name, [&](const float* values, int64_t numel) {
    next = std::copy_n(values, numel, next);
  });
  return whole;
}

}  // namespace

EvaluatedModel find_evaluated(const std::string& path, const std::string& which) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fmt::format("'{}' does not exist{}. Give a Hugging Face folder, a run's "
                                   "output folder, or a checkpoint's folder.",
                                   path, sherd::files::where_it_begins(path)));
  }
  const fs::path run = run_folder_of(path);
  if (!which.empty() && (run.empty() || is_checkpoint(path))) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("--checkpoint {} chooses among those of a run: '{}' is {}. Give "
                                   "a run's output folder.",
                                   which, path, run.empty() ? "none" : "a checkpoint itself"));
  }
  if (run.empty()) {
    return {.model_folder = path, .checkpoint = ""};
  }
  if (!is_checkpoint(path)) {
    require_checkpoint(run);
  }
  EvaluatedModel found;
  found.checkpoint = checkpoint_at(path, which, "--model").string();
  const RunNote note =
      note_from_text(sherd::CheckpointManifest::read(found.checkpoint).note, found.checkpoint);
  found.run = config_of(note, found.checkpoint);
  const config::RunConfig& config = *found.run;
  found.model_folder = note.model;
  found.ignored_fields.names = config.model.ignore_fields;
  const auto& sets = config.data.eval.empty() ? config.data.train : config.data.eval;
  if (!sets.empty()) {
    found.columns = reading_of(sets.front(), config.data).columns;
  }
  found.max_length = config.data.max_length.value_or(0);
  found.max_answer_tokens = config.data.max_answer_tokens;
  found.param_dtype = dtype_of(config.precision.param_dtype);
  return found;
}

sherd::Sharded<model::CausalLm> load_evaluated(const EvaluatedModel& source,
                                               const ModelShape& shape, const sherd::Mesh& mesh,
                                               const sherd::ShardOptions& options) {
  if (source.checkpoint.empty()) {
    return load_sharded(source.model_folder, mesh, options, source.ignored_fields);
  }
  auto model = sherd::fully_shard(shape.shapes, mesh, options);
  sherd::CheckpointManifest manifest;
  together(model.world(), [&] {
    if (model.world().rank() == 0) {
      manifest = sherd::CheckpointManifest::read(source.checkpoint);
    }
  });
  sherd::load_from_rank0(model, [&](const std::string& name) {
    return read_parameter(source.checkpoint, manifest, name);
  });
  return model;
}

}  // namespace llm::train
