#include "llm/eval/evaluated_model.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include <fmt/core.h>

#include "files/system_text.h"
#include "llm/adapters/peft_config.h"
#include "llm/config/run_config.h"
#include "llm/inputs/data_options.h"
#include "llm/inputs/run_data.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/io/quantized_weights.h"
#include "llm/setup/agreement.h"
#include "llm/setup/checkpoints.h"
#include "llm/setup/chosen_checkpoint.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/reference_key.h"
#include "llm/text/chosen_template.h"
#include "llm/text/special_tokens.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace llm::eval {

namespace {

namespace fs = std::filesystem;

// The output folder: the path itself or the one its checkpoint is in; empty if it is neither.
fs::path run_folder_of(const fs::path& path) {
  std::error_code ignored;
  if (setup::is_checkpoint(path)) {
    return fs::absolute(path / ".").parent_path().parent_path().parent_path();
  }
  const bool is_model = fs::exists(path / "config.json", ignored);
  const bool is_run =
      fs::exists(path / "checkpoints", ignored) || fs::exists(path / "config.toml", ignored);
  return !is_model && is_run ? path : fs::path();
}

void require_checkpoint(const fs::path& run) {
  if (setup::Checkpoints(run).complete_steps().empty()) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fmt::format("'{}' is a run without a complete checkpoint: checkpoint.every "
                                   "and checkpoint.at_end set when it saves",
                                   run.string()));
  }
}

// What load_safetensors() calls the model's parameters. Collective.
std::function<std::string(const std::string&)> names_in(const std::string& folder,
                                                        const model::CausalLm& shapes,
                                                        sherd::World world) {
  return setup::read_on_all_ranks(world, [&] {
    return io::names_in_file(io::match_weights(*shapes, sherd::SafetensorsFolder(folder)));
  });
}

void require_base(const EvaluatedModel& source, sherd::World world) {
  setup::on_rank_0(world, [&] {
    const sherd::WorkPhase reading(world, "reading the base " + source.model_folder,
                                   setup::kLongestSilence);
    setup::require_base(source.model_folder, source.base, source.checkpoint,
                        "Restore that base there, or export the checkpoint over a folder that has "
                        "it: sherd export --checkpoint " +
                            source.checkpoint + " --model FOLDER --out NEW");
  });
}

// An adapter that PEFT reads too, with its base.
EvaluatedModel evaluated_adapter(const std::string& path, const std::string& base) {
  const adapters::PeftConfig config = adapters::read_peft_config(path);
  const std::string folder = base.empty() ? adapters::base_folder_of(config) : base;
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    throw sherd::Error(
        sherd::ExitCode::InputMissing,
        fmt::format("the base model '{}' of the adapter in '{}' (base_model_name_or_path) does not "
                    "exist: give its folder with --base",
                    folder, path));
  }
  io::require_model_folder(folder, {io::kConfigFile});
  EvaluatedModel found{.model_folder = folder, .checkpoint = ""};
  found.adapter = config.adapter;
  if (fs::exists(fs::path(path) / io::kTokenizerFile, ignored)) {
    found.tokenizer_folder = path;
  }
  return found;
}

// `ids` and, for an adapter with its own tokenizer, the ids that stop its base: trainers copy no
// generation_config.json to an adapter.
std::vector<text::TokenId> with_stops_of_base(std::vector<text::TokenId> ids,
                                              const EvaluatedModel& source,
                                              const text::Tokenizer& tokenizer) {
  if (source.tokenizer_folder.empty()) {
    return ids;
  }
  constexpr text::TokenId kNone = -1;  // the adapter's vocabulary may lack the base's end token
  const auto of_base = text::read_special_ids(source.model_folder, [&](const std::string& token) {
    return tokenizer.token_to_id(token).value_or(kNone);
  });
  for (const text::TokenId id : of_base.stop) {
    if (id != kNone && std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace

EvaluatedModel find_evaluated(const std::string& path, const std::string& which,
                              const std::string& base) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw sherd::Error(
        sherd::ExitCode::InputMissing,
        fmt::format("'{}' does not exist{}. Give a Hugging Face folder (`sherd fetch ORG/NAME` "
                    "downloads one), a run's output folder, or the folder of a checkpoint or of a "
                    "PEFT adapter.",
                    path, sherd::files::where_it_begins(path)));
  }
  const bool is_adapter = adapters::is_peft_folder(path);
  if (!base.empty() && !is_adapter) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("--base {} names the base model of a PEFT adapter's folder: '{}' is "
                    "none",
                    base, path));
  }
  const fs::path run = is_adapter ? fs::path() : run_folder_of(path);
  if (!which.empty() && (run.empty() || setup::is_checkpoint(path))) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("--checkpoint {} selects a checkpoint of a run: '{}' is {}. "
                                   "Give a run's output folder.",
                                   which, path, run.empty() ? "none" : "a checkpoint itself"));
  }
  if (is_adapter) {
    return evaluated_adapter(path, base);
  }
  if (run.empty()) {
    io::require_model_folder(path, {io::kConfigFile});
    return {.model_folder = path, .checkpoint = ""};
  }
  if (!setup::is_checkpoint(path)) {
    require_checkpoint(run);
  }
  EvaluatedModel found;
  const setup::IntactCheckpoint chosen = setup::checkpoint_at(path, which, "--model");
  found.checkpoint = chosen.folder.string();
  found.notices = chosen.notices;
  const setup::RunNote note = setup::note_from_text(
      sherd::CheckpointManifest::read(found.checkpoint).note, found.checkpoint);
  found.run = setup::config_of(note, found.checkpoint);
  const config::RunConfig& config = *found.run;
  found.model_folder = note.model;
  found.adapter = config.adapter;
  found.ignored_fields.names = config.model.ignore_fields;
  const auto& sets = config.data.eval.empty() ? config.data.train : config.data.eval;
  if (!sets.empty()) {
    found.columns = inputs::reading_of(sets.front(), config.data).columns;
  }
  found.max_length = config.data.max_length.value_or(0);
  found.max_answer_tokens = config.data.max_answer_tokens;
  found.param_dtype = setup::dtype_of(config.precision.param_dtype);
  found.model_values = note.model_values;
  found.chat_template = note.chat_template;
  found.base = note.base;
  found.reference = note.reference;
  return found;
}

setup::ModelShape shape_of(const EvaluatedModel& source) {
  config::RunConfig of_adapter;
  of_adapter.adapter = source.adapter;
  return setup::model_shape(source.model_folder, source.ignored_fields,
                            setup::preparation_of(source.run ? *source.run : of_adapter));
}

text::Tokenizer tokenizer_of(const EvaluatedModel& source) {
  return source.tokenizer_folder.empty() ? setup::load_tokenizer(source.model_folder)
                                         : text::Tokenizer::from_folder(source.tokenizer_folder);
}

std::vector<text::TokenId> stop_ids_of(const EvaluatedModel& source,
                                       const text::Tokenizer& tokenizer) {
  return with_stops_of_base(tokenizer.stop_ids(), source, tokenizer);
}

void require_same_model(const EvaluatedModel& source, const setup::ModelShape& shape,
                        const text::Tokenizer& tokenizer) {
  const std::string changes =
      setup::changed_model(source.model_values, setup::model_identity(shape.config, tokenizer));
  if (!changes.empty()) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("the model folder '{}' has changed since the run '{}' began:{}\nRestore it. To "
                    "use it as it is now, export the checkpoint with `sherd export --checkpoint {} "
                    "--model {} --out NEW`, and give NEW.",
                    source.model_folder, source.checkpoint, changes, source.checkpoint,
                    source.model_folder));
  }
}

EvaluatedChat chat_of(const EvaluatedModel& source, const text::Tokenizer& tokenizer,
                      const std::string& choice) {
  if (!choice.empty()) {
    auto asked = text::chat_template_of(choice, tokenizer.folder(), "--template");
    if (!asked) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         "--template model: " + text::text_without_template(tokenizer.folder()));
    }
    const text::ChatEncoder encoder(tokenizer, std::move(*asked), {});
    return {std::make_shared<text::ChatEncoder>(encoder), false,
            with_stops_of_base(encoder.stop_ids(), source, tokenizer)};
  }
  if (!source.chat_template.empty()) {
    auto learned = inputs::learned_chat_of(source.run->data, tokenizer, source.chat_template);
    auto stop_ids = learned->stop_ids();
    return {std::move(learned), true, std::move(stop_ids)};
  }
  EvaluatedChat chat{nullptr, false, stop_ids_of(source, tokenizer)};
  if (auto own = text::ChatTemplate::from_folder(tokenizer.folder())) {
    chat.encoder =
        std::make_shared<text::ChatEncoder>(tokenizer, std::move(*own), text::ChatOptions{});
  }
  return chat;
}

namespace {

void require_start(const EvaluatedModel& source, const config::RunConfig& start,
                   const setup::ModelShape& shape, sherd::World world) {
  setup::on_rank_0(world, [&] {
    if (source.reference.empty()) {
      return;  // a checkpoint of an older version
    }
    const sherd::WorkPhase reading(world, "reading the weights of the reference model",
                                   setup::kLongestSilence);
    const std::string now = setup::start_weights(start, shape.config, source.base.sha256);
    if (now != source.reference.weights) {
      throw sherd::Error(
          sherd::ExitCode::BadData,
          fmt::format("the reference of the run of '{}' is its model before the first step, which "
                      "has changed since: {}, or give data without preference pairs.",
                      source.checkpoint,
                      setup::changed_start(source.reference.weights, now, start)));
    }
  });
}

}  // namespace

sherd::Sharded<model::CausalLm> load_start(const EvaluatedModel& source,
                                           const setup::ModelShape& shape,
                                           const sherd::World& world,
                                           const sherd::ShardOptions& options) {
  config::RunConfig start = *source.run;
  start.model.path = source.model_folder;
  start.model.ignore_fields = source.ignored_fields.names;
  start.device = {};  // the run's own may be another
  start.memory = {};
  start.data.max_length.reset();
  if (source.max_length > 0) {
    start.data.max_length = source.max_length;
  }
  require_base(source, world);
  require_start(source, start, shape, world);
  return setup::load_frozen_model(start, shape, world, options);
}

sherd::Sharded<model::CausalLm> load_evaluated(const EvaluatedModel& source,
                                               const setup::ModelShape& shape,
                                               const sherd::Mesh& mesh,
                                               const sherd::ShardOptions& options) {
  for (at::Tensor& parameter : shape.shapes->parameters()) {
    parameter.set_requires_grad(false);  // no fp32 master, no gradient
  }
  const auto with_longest_text = [&](sherd::Sharded<model::CausalLm> model) {
    model.module()->set_longest_text(
        inputs::sample_length(source.max_length, model.module()->context_length()));
    return model;
  };
  if (!source.checkpoint.empty() && source.base.empty()) {
    auto model = sherd::fully_shard(shape.shapes, mesh, options);
    sherd::load_checkpoint(model, source.checkpoint);
    return with_longest_text(std::move(model));
  }
  require_base(source, mesh.world());
  const bool reads_adapter =
      source.checkpoint.empty() && source.adapter.kind != config::AdapterKind::None;
  if (reads_adapter) {
    setup::require_same_adapter(mesh.world(), source.adapter);
  }
  const auto name_in_file = names_in(source.model_folder, shape.shapes, mesh.world());
  auto model = sherd::fully_shard(shape.shapes, mesh, options);
  sherd::load_safetensors(model, source.model_folder, name_in_file,
                          io::quantizing_readers(*model.module()));
  if (!source.checkpoint.empty()) {
    sherd::load_checkpoint(model, source.checkpoint);
  } else if (reads_adapter) {
    setup::load_peft_adapter(model, source.adapter);
  }
  return with_longest_text(std::move(model));
}

}  // namespace llm::eval
