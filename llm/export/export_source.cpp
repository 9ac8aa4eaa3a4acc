#include "llm/export/export_source.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "llm/adapters/adapt.h"
#include "llm/adapters/chosen_modules.h"
#include "llm/adapters/merge.h"
#include "llm/adapters/peft_config.h"
#include "llm/adapters/peft_weights.h"
#include "llm/inputs/data_options.h"
#include "llm/model/adapter_names.h"
#include "llm/setup/base_weights.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/run_module.h"
#include "llm/setup/run_note.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/python_text.h"
#include "sherd/error.h"

namespace llm::exports {

namespace {

using sherd::Error;
using sherd::ExitCode;

void check_parameters(const std::vector<sherd::SafetensorsSpec>& specs,
                      const sherd::CheckpointManifest& manifest, const std::string& checkpoint,
                      const std::string& model) {
  for (const sherd::SafetensorsSpec& spec : specs) {
    const auto found = manifest.parameters.find(spec.name);
    const bool is_there = found != manifest.parameters.end();
    if (is_there ? found->second.shape != spec.shape : !manifest.base) {
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

ExportSource::ExportSource(const ExportOptions& options) {
  if (adapters::is_peft_folder(options.checkpoint)) {
    open_adapter(options);
  } else {
    open_checkpoint(options);
  }
  static_cast<void>(io::copied_bytes(model));
}

void ExportSource::open_checkpoint(const ExportOptions& options) {
  chosen = setup::newest_intact(options.checkpoint, "--checkpoint");
  checkpoint = chosen.folder.string();
  manifest = sherd::CheckpointManifest::read(checkpoint);
  const setup::RunNote note = setup::note_from_text(manifest.note, checkpoint);
  model = options.model.empty() ? note.model : options.model;
  const config::RunConfig run = setup::config_of(note, checkpoint);
  read_config(run, options);
  if (options.model.empty()) {
    check_folder_is_unchanged(note, config, checkpoint);
  }
  build_shapes(run);
  find_adapter(run, options);
  check_parameters(specs, manifest, checkpoint, model);
  if (manifest.base) {
    setup::require_base(model, note.base, checkpoint,
                        "Name the folder that has that base with --model, or restore it.");
    base = std::make_unique<FolderWeights>(model, *shapes);
  }
  chat = exported_chat_of(run.data, note.chat_template, model);
}

void ExportSource::open_adapter(const ExportOptions& options) {
  checkpoint = options.checkpoint;
  const adapters::PeftConfig peft = adapters::read_peft_config(checkpoint);
  model = options.model.empty() ? adapters::base_folder_of(peft) : options.model;
  std::error_code ignored;
  if (!std::filesystem::exists(model, ignored)) {
    throw Error(ExitCode::InputMissing,
                fmt::format("the base model '{}' of the adapter in '{}' (base_model_name_or_path) "
                            "does not exist: give its folder with --model",
                            model, checkpoint));
  }
  config::RunConfig run;
  run.adapter = peft.adapter;
  read_config(run, options);
  build_shapes(run);
  adapters::require_peft_tensors(*shapes, run.adapter);
  find_adapter(run, options);
  adapter_file_ =
      std::make_unique<sherd::SafetensorsFolder>(adapters::peft_weights_path(run.adapter));
  base = std::make_unique<FolderWeights>(model, *shapes);
  if (std::filesystem::exists(std::filesystem::path(checkpoint) / io::kTokenizerFile, ignored)) {
    tokenizer = checkpoint;
    static_cast<void>(io::copied_bytes(tokenizer));
  }
}

void ExportSource::read_config(const config::RunConfig& run, const ExportOptions& options) {
  io::IgnoredFields ignored{run.model.ignore_fields, families::IgnoreBy::Flag};
  ignored.names.insert(ignored.names.end(), options.ignored_fields.begin(),
                       options.ignored_fields.end());
  ignored_fields = ignored.names;
  config = io::read_model_folder_config(model, ignored);
}

void ExportSource::build_shapes(const config::RunConfig& run) {
  shapes = sherd::on_meta([&] {
    auto module = io::build_model(config);
    config::RunConfig in_full = run;  // a base in 8 bits is exported from its folder's numbers
    in_full.model.quantize = config::Quantize::None;
    setup::prepare_run_module(module, in_full);
    return module;
  });
}

void ExportSource::write_words(const std::string& out) const {
  io::copy_config_and_tokenizer(model, out, dtype, chat);
  if (!tokenizer.empty()) {
    io::copy_own_tokenizer(tokenizer, out);
  }
}

const sherd::SafetensorsLocation& FolderWeights::location_of(const std::string& parameter) const {
  return std::find_if(places.begin(), places.end(),
                      [&](const io::WeightSource& place) { return place.parameter == parameter; })
      ->location;
}

void ExportSource::find_adapter(const config::RunConfig& run, const ExportOptions& options) {
  const bool has_adapter = run.adapter.kind == config::AdapterKind::Lora;
  if (options.merged && !has_adapter) {
    throw Error(ExitCode::Usage,
                "--merged: the run of '" + checkpoint +
                    "' trained no adapter: leave it out, and the model is written");
  }
  if (has_adapter && !options.merged) {
    adapter = run.adapter;
    dtype = options.dtype.value_or(c10::kFloat);
    for (const std::string& name : adapters::adapter_parameters(*shapes, adapter)) {
      specs.push_back({name, dtype, shapes->named_parameters()[name].sizes().vec()});
    }
    return;
  }
  dtype = options.dtype ? *options.dtype : weights_dtype(*shapes, config, model);
  specs = io::export_specs(*shapes, dtype);
  if (has_adapter) {
    for (const auto& module : adapters::choose_modules(*shapes, run.adapter).adapted) {
      scale_of[module.name + ".weight"] = module.shape.scale();
    }
  }
}

at::Tensor ExportSource::gathered(const std::string& parameter,
                                  void (ExportSource::*each)(const std::string&, const TakeValues&)
                                      const) const {
  at::Tensor values =
      at::empty(shapes->named_parameters()[parameter].sizes(), at::TensorOptions(at::kFloat));
  auto* next = values.mutable_data_ptr<float>();
  (this->*each)(parameter, [&](const float* some, std::int64_t numel) {
    next = std::copy(some, some + numel, next);
  });
  return values;
}

at::Tensor ExportSource::values(const std::string& parameter) const {
  return gathered(parameter, &ExportSource::for_each_values);
}

void ExportSource::for_each_values(const std::string& parameter, const TakeValues& take) const {
  const auto adapted = scale_of.find(parameter);
  if (adapted == scale_of.end()) {
    return for_each_stored_values(parameter, take);
  }
  const auto stored = [&](const std::string& name) {
    return gathered(name, &ExportSource::for_each_stored_values);
  };
  const std::string module = parameter.substr(0, parameter.rfind('.'));
  const at::Tensor merged =
      adapters::merged_weight(stored(parameter), stored(module + std::string(model::kLoraA)),
                              stored(module + std::string(model::kLoraB)), adapted->second,
                              adapters::has_transposed_weights(*shapes))
          .contiguous();
  take(merged.const_data_ptr<float>(), merged.numel());
}

void ExportSource::for_each_stored_values(const std::string& parameter,
                                          const TakeValues& take) const {
  if (base == nullptr || manifest.parameters.contains(parameter)) {
    return sherd::read_checkpoint_values(checkpoint, manifest, parameter, take);
  }
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const auto learned =
      adapter_file_ ? adapter_file_->find(adapters::peft_name(parameter)) : std::nullopt;
  const auto& [file, entry] = learned ? *learned : base->location_of(parameter);
  std::vector<float> values(static_cast<std::size_t>(std::min(entry->numel(), kElements)));
  for (std::int64_t first = 0; first < entry->numel(); first += kElements) {
    const std::int64_t end = std::min(first + kElements, entry->numel());
    file->read_elements(*entry, first, end, at::kFloat, values.data());
    take(values.data(), end - first);
  }
}

}  // namespace llm::exports
