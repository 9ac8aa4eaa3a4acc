#include "llm/io/hf_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "files/json.h"
#include "files/system_text.h"
#include "llm/families/json_fields.h"
#include "sherd/error.h"

namespace llm::io {
namespace {

namespace fs = std::filesystem;
using families::JsonFields;

constexpr std::array<std::pair<const char*, c10::ScalarType>, 4> kDtypes = {
    {{"float32", c10::ScalarType::Float},
     {"bfloat16", c10::ScalarType::BFloat16},
     {"float16", c10::ScalarType::Half},
     {"float64", c10::ScalarType::Double}}};

// What transformers writes into any config.json and no forward reads: names and versions, ids of
// special tokens, how texts are generated, what forward returns, heads of other tasks.
constexpr const char* kHarmless[] = {"_attn_implementation",
                                     "_attn_implementation_autoset",
                                     "_commit_hash",
                                     "_num_labels",
                                     "_name_or_path",
                                     "attn_implementation",
                                     "begin_suppress_tokens",
                                     "bos_token_id",
                                     "chunk_size_feed_forward",
                                     "decoder_start_token_id",
                                     "diversity_penalty",
                                     "do_sample",
                                     "early_stopping",
                                     "encoder_no_repeat_ngram_size",
                                     "eos_token_id",
                                     "finetuning_task",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "id2label",
                                     "is_decoder",
                                     "label2id",
                                     "length_penalty",
                                     "license",
                                     "max_length",
                                     "min_length",
                                     "name_or_path",
                                     "no_repeat_ngram_size",
                                     "num_beam_groups",
                                     "num_beams",
                                     "num_labels",
                                     "num_return_sequences",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_scores",
                                     "pad_token_id",
                                     "prefix",
                                     "problem_type",
                                     "repetition_penalty",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "sep_token_id",
                                     "suppress_tokens",
                                     "task_specific_params",
                                     "temperature",
                                     "tokenizer_class",
                                     "top_k",
                                     "top_p",
                                     "torchscript",
                                     "transformers.js_config",
                                     "transformers_version",
                                     "typical_p",
                                     "unk_token_id",
                                     "unsloth_fixed",
                                     "unsloth_version",
                                     "use_cache"};

// "llama" and "bloom"
std::string implemented_types() {
  std::string text;
  const auto& all = families::all_families();
  for (size_t i = 0; i < all.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == all.size() ? " and " : ", ");
    text += std::string("\"") + all[i]->model_type + '"';
  }
  return text;
}

// What people try that is near to a family, and why it is another.
std::string note_on(const std::string& model_type) {
  const auto contains_any = [&](std::initializer_list<const char*> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const char* part) {
      return model_type.find(part) != std::string::npos;
    });
  };
  if (contains_any({"moe", "mixtral", "deepseek", "gpt_oss", "llama4", "dbrx"})) {
    return ". It is a mixture of experts; dense models of the families work";
  }
  if (model_type == "gemma3" || contains_any({"_vl", "llava", "mllama", "gemma3n", "gemma4",
                                              "mistral3", "multimodal", "pixtral", "vision"})) {
    return ". It reads more than text; a folder of its text model alone works: load that part in "
           "transformers, as Gemma3ForCausalLM for instance, and save it with save_pretrained()";
  }
  return "";
}

const families::Family& family_of(const JsonFields& fields) {
  const auto model_type = fields.text("model_type");
  if (!model_type) {
    fields.fail("model_type", "is missing");
  }
  const families::Family* family = families::find_family(*model_type);
  if (family == nullptr) {
    fields.fail("model_type", '"' + *model_type + "\" is not implemented, only " +
                                  implemented_types() + note_on(*model_type));
  }
  return *family;
}

std::optional<c10::ScalarType> read_dtype(const JsonFields& fields) {
  std::optional<c10::ScalarType> dtype;
  for (const char* field : {"torch_dtype", "dtype"}) {
    const auto name = fields.text(field);
    if (!name) {
      continue;
    }
    const auto found = dtype_of_name(*name);
    if (!found) {
      fields.fail(field,
                  '"' + *name + "\" is not implemented, only float32, bfloat16, float16, float64");
    }
    if (dtype && dtype != found) {
      fields.fail(field, '"' + *name + "\" contradicts \"torch_dtype\"");
    }
    dtype = found;
  }
  return dtype;
}

}  // namespace

nlohmann::ordered_json read_config_json(const std::string& path) {
  try {
    return sherd::files::read_json_object<nlohmann::ordered_json>(
        path, sherd::files::RepeatedFields::Refuse);
  } catch (const sherd::Error& error) {
    if (error.code() != sherd::ExitCode::InputMissing) {
      throw;
    }
    throw sherd::Error(error.code(),
                       error.what() + std::string("; a Hugging Face model folder has this file"));
  }
}

HfConfig read_hf_config(const std::string& path, const IgnoredFields& ignored) {
  auto json = read_config_json(path);
  for (const std::string& field : ignored.names) {
    json.erase(field);
  }
  const JsonFields fields(json, path);
  const families::Family& family = family_of(fields);
  HfConfig config{.family = &family, .shape = family.parse(fields), .dtype = read_dtype(fields)};
  std::vector<const char*> harmless(std::begin(kHarmless), std::end(kHarmless));
  harmless.insert(harmless.end(), family.harmless_fields.begin(), family.harmless_fields.end());
  fields.refuse_unknown(harmless, ignored.by);
  config.dropout = fields.dropout();
  return config;
}

namespace {

constexpr const char* kModelFolder =
    "A model folder has config.json, model.safetensors and tokenizer.json. `sherd fetch ORG/NAME` "
    "downloads one from a hub and prints its folder.";

// A run's folder in the place of a model's: what it learned is in checkpoints.
void refuse_run(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "manifest.json", ignored)) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("'{0}' is a checkpoint, and a model folder is needed here: "
                                   "sherd export --checkpoint {0} --out FOLDER makes one from it.",
                                   folder.string()));
  }
  if (fs::exists(folder / "checkpoints", ignored) || fs::exists(folder / "config.toml", ignored)) {
    const std::string exported = (folder / "export").string();
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("'{0}' is a run: a model folder is needed here. {1}To continue the run itself: "
                    "sherd train {0}.",
                    folder.string(),
                    fs::exists(exported + "/config.json", ignored)
                        ? fmt::format("It has one, {}. ", exported)
                        : fmt::format("sherd export {} --out FOLDER makes one from it. ",
                                      folder.string())));
  }
}

// Where a model was meant instead, as far as the folder tells.
std::string advice_on_folder(const fs::path& folder, const std::string& missing) {
  std::error_code ignored;
  std::set<std::string> inner;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::exists(entry.path() / missing, ignored)) {
      inner.insert(entry.path().string());
    }
  }
  if (!inner.empty()) {
    return fmt::format("Its folder '{}' has {}: give that one. ", *inner.begin(), missing);
  }
  for (const char* other : {"tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"}) {
    if (missing == kTokenizerFile && fs::exists(folder / other, ignored)) {
      return fmt::format(
          "It has {1}, from which transformers writes the missing file: python3 -c 'from "
          "transformers import AutoTokenizer; "
          "AutoTokenizer.from_pretrained(\"{0}\").save_pretrained(\"{0}\")'. ",
          folder.string(), other);
    }
  }
  return "";
}

}  // namespace

void require_model_folder(const std::string& folder, const std::vector<std::string>& files) {
  std::error_code ignored;
  const fs::path path = folder;
  if (!fs::is_directory(path, ignored)) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       fs::exists(path, ignored)
                           ? fmt::format("'{}' is a file, and a model folder is needed here. {}",
                                         folder, kModelFolder)
                           : fmt::format("the model folder '{}' does not exist{}. {}", folder,
                                         sherd::files::where_it_begins(folder), kModelFolder));
  }
  std::vector<std::string> missing;
  std::copy_if(files.begin(), files.end(), std::back_inserter(missing),
               [&](const std::string& file) { return !fs::exists(path / file, ignored); });
  if (missing.empty()) {
    return;
  }
  if (missing.front() == kConfigFile) {
    refuse_run(path);
  }
  throw sherd::Error(
      sherd::ExitCode::InputMissing,
      fmt::format("the model folder '{}' has no {}. {}{}", folder, fmt::join(missing, " and no "),
                  advice_on_folder(path, missing.front()), kModelFolder));
}

HfConfig read_model_folder_config(const std::string& folder, const IgnoredFields& ignored) {
  require_model_folder(folder, {kConfigFile});
  return read_hf_config(folder + "/" + kConfigFile, ignored);
}

model::CausalLm build_model(const HfConfig& config) {
  return config.family->build(config.shape);
}

std::optional<c10::ScalarType> dtype_of_name(const std::string& name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::string name_of_dtype(c10::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) {
      return name;
    }
  }
  TORCH_CHECK(false, "[name_of_dtype] ", dtype, " is not a dtype of model weights");
}

}  // namespace llm::io
