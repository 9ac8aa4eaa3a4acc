#include "app/model_flags.h"

#include <utility>

#include "app/device.h"
#include "app/dtypes.h"
#include "app/ignore_fields.h"
#include "app/numbers.h"
#include "llm/adapters/peft_config.h"
#include "llm/text/chosen_template.h"
#include "sherd/error.h"

namespace app {

void add_model_flags(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("model,--model", flags.model,
                  "Hugging Face folder, a run's output folder, or the folder of a checkpoint or of "
                  "a PEFT adapter");
  verb.add_option("--checkpoint", flags.checkpoint,
                  "checkpoint of a run: best, last, a step or a folder (default: last)");
  verb.add_option("--base", flags.base,
                  "base model of a PEFT adapter (default: what its adapter_config.json names)");
  one_of(verb.add_option("--dtype", flags.dtype,
                         "dtype of the computation (default: the run's, else float32)"),
         dtype_words());
  add_device_flag(verb, flags.device);
  add_ignore_fields(verb, flags.ignored_fields);
}

void resolve_model(HubNames& names, ModelFlags& flags) {
  names.resolve_model(flags.model, "--model");
  std::string revision;
  if (flags.base.empty() && llm::adapters::is_peft_folder(flags.model)) {
    try {
      const llm::adapters::PeftConfig config = llm::adapters::read_peft_config(flags.model);
      flags.base = llm::adapters::base_folder_of(config);
      revision = config.revision;
    } catch (const sherd::Error&) {
      return;  // find_model() reports it, once for all ranks
    }
  }
  names.resolve_model(flags.base, "--base", revision);
}

void take_model(ModelFlags& flags) {
  if (flags.model.empty() && flags.checkpoint.empty()) {
    throw CLI::RequiredError("--model");
  }
  if (flags.model.empty()) {
    std::swap(flags.model, flags.checkpoint);
  }
}

llm::eval::EvaluatedModel find_model(const ModelFlags& flags) {
  llm::eval::EvaluatedModel found =
      llm::eval::find_evaluated(flags.model, flags.checkpoint, flags.base);
  auto& ignored = found.ignored_fields.names;
  ignored.insert(ignored.end(), flags.ignored_fields.begin(), flags.ignored_fields.end());
  if (!flags.dtype.empty()) {
    found.param_dtype = dtypes_by_name().at(flags.dtype);
  }
  return found;
}

CLI::Option* add_template_flag(CLI::App& verb, std::string& choice) {
  return verb
      .add_option("--template", choice,
                  "chat template: a Jinja file, or " + llm::text::names_of_templates() +
                      " (default: the run's, else the model's)")
      ->type_name("NAME|FILE");
}

}  // namespace app
