#include "llm/export/export_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "files/folder.h"
#include "llm/inputs/data_options.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/io/weight_files.h"
#include "llm/setup/checkpoints.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/run_note.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/python_text.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::exports {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

// A new or empty folder that keeps nothing of an export that fails.
class OutFolder {
 public:
  OutFolder(const std::string& folder, const std::string& model) : folder_(folder) {
    std::error_code ignored;
    if (fs::equivalent(folder, model, ignored)) {
      throw Error(ExitCode::Usage,
                  "--out: '" + folder + "' is the folder of the model itself; give another one.");
    }
    made_ = !fs::exists(folder);
    sherd::files::make_folder(folder);
    if (!fs::is_empty(folder)) {
      throw Error(ExitCode::CannotWrite,
                  "the folder '" + folder +
                      "' is not empty, and an export is not mixed with other files. Give a new "
                      "folder to --out, or empty this one.");
    }
    begun_ = true;
  }
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;
  ~OutFolder() {
    if (!begun_) {
      return;
    }
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      fs::remove_all(entry.path(), ignored);
    }
    if (made_) {
      fs::remove(folder_, ignored);
    }
  }

  void keep() { begun_ = false; }
  [[nodiscard]] const std::string& path() const { return folder_; }

 private:
  std::string folder_;
  bool made_ = false;
  bool begun_ = false;
};

void check_parameters(const std::vector<sherd::SafetensorsSpec>& specs,
                      const sherd::CheckpointManifest& manifest, const std::string& checkpoint,
                      const std::string& model) {
  for (const sherd::SafetensorsSpec& spec : specs) {
    const auto found = manifest.parameters.find(spec.name);
    if (found == manifest.parameters.end() || found->second.shape != spec.shape) {
      throw Error(ExitCode::BadData, "the checkpoint in '" + checkpoint +
                                         "' does not belong to the model in '" + model +
                                         "': it has no parameter '" + spec.name +
                                         "' of that shape. Name the right folder with --model.");
    }
  }
}

}  // namespace

c10::ScalarType weights_dtype(model::CausalLmImpl& model, const io::HfConfig& config,
                              const std::string& folder) {
  if (!io::has_weights(folder)) {
    return config.dtype.value_or(c10::kFloat);
  }
  const sherd::SafetensorsFolder weights(folder);
  return io::match_weights(model, weights).front().location.entry->dtype;
}

namespace {

void check_folder_is_unchanged(const setup::RunNote& note, const io::HfConfig& config,
                               const std::string& checkpoint) {
  if (note.model_values.empty()) {
    return;  // of an older version
  }
  const std::string changes = setup::changed_model(
      note.model_values, setup::model_identity(config, setup::load_tokenizer(note.model)));
  if (!changes.empty()) {
    throw Error(ExitCode::BadData,
                "the model folder '" + note.model + "' has changed since the run '" + checkpoint +
                    "' began:" + changes +
                    "\nRestore it, or name the folder to take config and tokenizer from with "
                    "--model.");
  }
}

}  // namespace

namespace {

bool is_identifier(const std::string& name) {
  const bool begins_with_digit = !name.empty() && '0' <= name[0] && name[0] <= '9';
  return !name.empty() && !begins_with_digit && std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
  });
}

// The template that was learned by. Whoever renders it need not know the arguments of the run: they
// are its defaults. The line end behind each is no text, as templates are rendered.
std::string with_default_arguments(const text::ChatEncoder& learned) {
  std::string defaults;
  for (const auto& [name, value] : learned.options().arguments.items()) {
    if (is_identifier(name)) {
      defaults += "{% if " + name + " is not defined %}{% set " + name + " = " +
                  text::python_repr(value) + " %}{% endif %}\n";
    }
  }
  return defaults + learned.chat_template().source();
}

// How the run taught its model to converse; none if it did not.
std::optional<io::ExportedChat> exported_chat_of(const config::DataSection& data,
                                                 const std::string& recorded,
                                                 const std::string& model) {
  if (recorded.empty()) {
    return std::nullopt;
  }
  const text::Tokenizer tokenizer = setup::load_tokenizer(model);
  const auto learned = inputs::learned_chat_of(data, tokenizer, recorded);
  io::ExportedChat chat;
  if (const auto stop = learned->stop_id()) {
    chat.stop_id = *stop;
    chat.stop_token = tokenizer.decode(std::span(&*stop, 1), false);
  }
  if (data.chat_template != "model" || !data.template_arguments.empty()) {
    chat.chat_template = with_default_arguments(*learned);
  }
  return chat;
}

}  // namespace

// What is exported, found out before anything is written.
struct CheckpointExport::State {
  explicit State(const ExportOptions& options)
      : chosen(setup::newest_intact(options.checkpoint, "--checkpoint")),
        checkpoint(chosen.folder.string()),
        manifest(sherd::CheckpointManifest::read(checkpoint)) {
    const setup::RunNote note = setup::note_from_text(manifest.note, checkpoint);
    source = options.model.empty() ? note.model : options.model;
    const config::RunConfig run = setup::config_of(note, checkpoint);
    io::IgnoredFields ignored{run.model.ignore_fields, families::IgnoreBy::Flag};
    ignored.names.insert(ignored.names.end(), options.ignored_fields.begin(),
                         options.ignored_fields.end());
    const io::HfConfig config = io::read_model_folder_config(source, ignored);
    if (options.model.empty()) {
      check_folder_is_unchanged(note, config, checkpoint);
    }
    auto model = sherd::on_meta([&] { return io::build_model(config); });
    dtype = options.dtype ? *options.dtype : weights_dtype(*model, config, source);
    specs = io::export_specs(*model, dtype);
    check_parameters(specs, manifest, checkpoint, source);
    static_cast<void>(io::copied_bytes(source));
    chat = exported_chat_of(run.data, note.chat_template, source);
    out.emplace(options.out, source);
    weights.emplace(options.out, specs);
  }

  setup::IntactCheckpoint chosen;
  std::string checkpoint;
  sherd::CheckpointManifest manifest;
  std::string source;  // the model's folder
  std::optional<io::ExportedChat> chat;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<sherd::SafetensorsSpec> specs;
  std::optional<OutFolder> out;
  std::optional<io::WeightFiles> weights;  // gone before their folder
  std::size_t written = 0;
};

CheckpointExport::CheckpointExport(const ExportOptions& options)
    : state_(std::make_unique<State>(options)) {}

CheckpointExport::~CheckpointExport() = default;

std::int64_t CheckpointExport::tensors() const {
  return static_cast<std::int64_t>(state_->specs.size());
}

void CheckpointExport::write_next() {
  const sherd::SafetensorsSpec& spec = state_->specs.at(state_->written++);
  sherd::read_checkpoint_values(
      state_->checkpoint, state_->manifest, spec.name, [&](const float* values, int64_t numel) {
        state_->weights->write(
            spec.name,
            at::from_blob(const_cast<float*>(values), {numel}, at::kFloat).to(state_->dtype));
      });
}

ExportOutcome CheckpointExport::finish() {
  state_->weights->finish();
  io::copy_config_and_tokenizer(state_->source, state_->out->path(), state_->dtype, state_->chat);
  state_->out->keep();
  return {state_->checkpoint, state_->chosen.notices, tensors(), state_->weights->file_bytes(),
          state_->dtype};
}

ExportOutcome export_checkpoint(const ExportOptions& options) {
  CheckpointExport work(options);
  for (std::int64_t i = 0; i < work.tensors(); ++i) {
    work.write_next();
  }
  return work.finish();
}

}  // namespace llm::exports
