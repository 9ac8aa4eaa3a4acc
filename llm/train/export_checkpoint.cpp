#include "llm/train/export_checkpoint.h"

#include <filesystem>
#include <system_error>

#include <ATen/ops/from_blob.h>

#include "llm/io/export.h"
#include "llm/io/import.h"
#include "llm/io/model_factory.h"
#include "llm/train/checkpoints.h"
#include "llm/train/run_note.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) {
    throw Error(ExitCode::CannotWrite,
                "cannot create the folder '" + folder +
                    "': " + (error ? error.message() : "a file of that name is there"));
  }
}

// The dtype that the weights themselves have; a config may say another. Its word counts where there
// are no weights: a run that began with random ones.
c10::ScalarType weights_dtype(model::CausalLmImpl& model, const io::HfConfig& config,
                              const std::string& folder) {
  if (!io::has_weights(folder)) {
    return config.dtype.value_or(c10::kFloat);
  }
  const sherd::SafetensorsFolder weights(folder);
  return io::match_weights(model, weights).front().location.entry->dtype;
}

void check_parameters(const std::vector<sherd::SafetensorsSpec>& specs,
                      const sherd::CheckpointManifest& manifest, const std::string& checkpoint,
                      const std::string& model) {
  for (const sherd::SafetensorsSpec& spec : specs) {
    const auto found = manifest.parameters.find(spec.name);
    if (found == manifest.parameters.end() || found->second.shape != spec.shape) {
      throw Error(ExitCode::BadData, "the checkpoint in '" + checkpoint +
                                         "' is not of the model in '" + model +
                                         "': it has no parameter '" + spec.name +
                                         "' of that shape. Name the right folder with --model.");
    }
  }
}

}  // namespace

ExportOutcome export_checkpoint(const ExportOptions& options) {
  const std::string checkpoint =
      checkpoints_at(options.checkpoint, "--checkpoint").front().string();
  const auto manifest = sherd::CheckpointManifest::read(checkpoint);
  const std::string source =
      options.model.empty() ? note_from_text(manifest.note, checkpoint).model : options.model;
  const io::HfConfig config = io::read_model_folder_config(source);
  auto model = sherd::on_meta([&] { return io::build_model(config); });
  const c10::ScalarType dtype =
      options.dtype ? *options.dtype : weights_dtype(*model, config, source);
  const auto specs = io::export_specs(*model, dtype);
  check_parameters(specs, manifest, checkpoint, source);
  make_folder(options.out);
  sherd::SafetensorsWriter writer((fs::path(options.out) / "model.safetensors").string(), specs,
                                  {{"format", "pt"}});
  for (const sherd::SafetensorsSpec& spec : specs) {
    sherd::read_checkpoint_values(
        checkpoint, manifest, spec.name, [&](const float* values, int64_t numel) {
          const at::Tensor converted =
              at::from_blob(const_cast<float*>(values), {numel}, at::kFloat).to(dtype);
          writer.write(spec.name, converted.const_data_ptr(), converted.nbytes());
        });
  }
  writer.finish();
  io::copy_config_and_tokenizer(source, options.out, dtype);
  return {checkpoint, static_cast<std::int64_t>(specs.size()),
          static_cast<std::int64_t>(writer.file_bytes()), dtype};
}

}  // namespace llm::train
