#include "llm/export/export_gguf.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/output.h"
#include "llm/export/export_adapter_gguf.h"
#include "sherd/error.h"
#include "sherd/fully_shard.h"

namespace llm::exports {
namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

// A copy of config and tokenizer with what a run has taught, or with the adapter's own tokenizer.
class TaughtFolder {
 public:
  explicit TaughtFolder(const ExportSource& source) {
    std::string pattern = fs::temp_directory_path() / "sherd-gguf-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      throw Error(ExitCode::CannotWrite, "no folder can be made in " +
                                             fs::temp_directory_path().string() +
                                             ": set TMPDIR to a folder with free space");
    }
    path_ = pattern;
    source.write_words(path_);
  }
  TaughtFolder(const TaughtFolder&) = delete;
  TaughtFolder& operator=(const TaughtFolder&) = delete;
  ~TaughtFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where a model's parameters and words come from.
struct GgufSource {
  std::string place = {};   // for messages
  std::string folder = {};  // of config and tokenizer
  std::vector<std::string> ignored_fields = {};
  io::HfConfig config = {};
  std::vector<sherd::SafetensorsSpec> parameters = {};
  gguf::FileKind kind = gguf::FileKind::F32;
  std::string name = {};
  std::function<at::Tensor(const std::string& parameter)> values = {};  // fp32
};

gguf::FileKind kind_of_dtype(c10::ScalarType dtype) {
  return dtype == c10::kBFloat16 ? gguf::FileKind::BF16
         : dtype == c10::kHalf   ? gguf::FileKind::F16
                                 : gguf::FileKind::F32;
}

std::string name_of_folder(const std::string& folder) {
  std::error_code ignored;
  const fs::path whole = fs::canonical(folder, ignored);
  return whole.filename().empty() ? "model" : whole.filename().string();
}

GgufSource source_of_checkpoint(const ExportSource& source) {
  GgufSource found{source.checkpoint, source.model, source.ignored_fields, source.config,
                   source.specs};
  found.kind = kind_of_dtype(source.dtype);
  found.name = name_of_folder(source.model);
  found.values = [&source](const std::string& parameter) { return source.values(parameter); };
  return found;
}

GgufSource source_of_folder(const std::string& folder,
                            const std::vector<std::string>& ignored_fields) {
  GgufSource found;
  found.place = found.folder = folder;
  found.ignored_fields = ignored_fields;
  static_cast<void>(io::copied_bytes(folder));  // links that lead out of it
  found.config = io::read_model_folder_config(folder, {ignored_fields, families::IgnoreBy::Flag});
  auto model = sherd::on_meta([&] { return io::build_model(found.config); });
  found.parameters = io::export_specs(*model, c10::kFloat);
  const auto weights = std::make_shared<FolderWeights>(folder, *model);
  found.kind = kind_of_dtype(weights->places.front().location.entry->dtype);
  found.name = name_of_folder(folder);
  found.values = [weights](const std::string& parameter) {
    const auto& [file, entry] = weights->location_of(parameter);
    return file->read(*entry).to(at::kFloat);
  };
  return found;
}

// The two files, refused where one is there.
struct OutFiles {
  explicit OutFiles(const std::string& out) {
    const fs::path path(out);
    const bool is_file = path.extension() == ".gguf";
    file = is_file ? path : path / "model.gguf";
    modelfile = is_file ? fs::path(path).replace_extension(".Modelfile") : path / "Modelfile";
    for (const fs::path& one : {file, modelfile}) {
      if (fs::exists(one)) {
        throw Error(
            ExitCode::CannotWrite,
            "--gguf: '" + one.string() + "' exists already. Give another name, or remove it.");
      }
    }
    folder = file.parent_path().empty() ? fs::path(".") : file.parent_path();
  }
  fs::path file;
  fs::path modelfile;
  fs::path folder;
};

std::string modelfile_of(const std::string& file, const std::vector<std::string>& stop_tokens) {
  std::string text = "# ollama create NAME -f this file\nFROM ./" + file + "\n";
  for (const std::string& token : stop_tokens) {
    text += "PARAMETER stop \"" + token + "\"\n";
  }
  return text;
}

void remove_nulls(nlohmann::ordered_json& object) {
  for (auto member = object.begin(); member != object.end();) {
    if (member->is_object()) {
      remove_nulls(*member);
    }
    member = member->is_null() ? object.erase(member) : std::next(member);
  }
}

// config.json as it was read for the model's shape: null counts as missing.
nlohmann::ordered_json config_that_counts(const GgufSource& source, const std::string& path) {
  auto config = io::read_config_json(path);
  for (const std::string& field : source.ignored_fields) {
    config.erase(field);
  }
  remove_nulls(config);
  return config;
}

GgufOutcome write_gguf(const GgufSource& source, const std::string& words, const OutFiles& out,
                       gguf::FileKind kind) {
  const std::string config_file = words + "/config.json";
  gguf::ModelWriter writer(
      out.file,
      gguf::plan_model({source.config.family->model_type, source.config.shape,
                        config_that_counts(source, config_file), source.folder + "/config.json"},
                       words, source.parameters, kind, source.name));
  for (const gguf::PlannedTensor& tensor : writer.plan().tensors) {
    writer.write(tensor, tensor.parameter.empty() ? at::Tensor() : source.values(tensor.parameter));
  }
  writer.finish();
  sherd::files::write_file(out.modelfile,
                           modelfile_of(out.file.filename(), writer.plan().stop_tokens));
  GgufOutcome outcome{source.place};
  outcome.file = out.file;
  outcome.modelfile = out.modelfile;
  outcome.tensors = std::ssize(writer.plan().tensors);
  outcome.file_bytes = static_cast<std::int64_t>(writer.file_bytes());
  outcome.kind = kind;
  return outcome;
}

}  // namespace

const char* name_of_kind(gguf::FileKind kind) {
  switch (kind) {
    case gguf::FileKind::F32:
      return "f32";
    case gguf::FileKind::F16:
      return "f16";
    case gguf::FileKind::BF16:
      return "bf16";
    case gguf::FileKind::Q8_0:
      break;
  }
  return "q8_0";
}

GgufOutcome export_gguf(const GgufOptions& options) {
  const OutFiles out(options.out);
  const auto write = [&](const GgufSource& source, const std::string& words) {
    const bool is_new = !fs::exists(out.folder);
    sherd::files::make_folder(out.folder);
    try {
      return write_gguf(source, words, out, options.kind.value_or(source.kind));
    } catch (...) {
      std::error_code ignored;
      if (is_new) {
        fs::remove(out.folder, ignored);
      }
      throw;
    }
  };
  if (!options.model_folder.empty()) {
    const GgufSource source = source_of_folder(options.model_folder, options.source.ignored_fields);
    return write(source, source.folder);
  }
  const ExportSource checkpoint(options.source);
  if (checkpoint.adapter.kind != config::AdapterKind::None) {
    const AdapterGguf written = write_adapter_gguf(checkpoint, options.out, options.kind);
    GgufOutcome outcome{checkpoint.checkpoint, checkpoint.chosen.notices, written.file};
    outcome.tensors = written.tensors;
    outcome.file_bytes = written.file_bytes;
    outcome.kind = written.kind;
    return outcome;
  }
  const GgufSource source = source_of_checkpoint(checkpoint);
  std::unique_ptr<TaughtFolder> taught;
  if (checkpoint.has_own_words()) {
    taught = std::make_unique<TaughtFolder>(checkpoint);
  }
  GgufOutcome outcome = write(source, taught ? taught->path() : source.folder);
  outcome.notices = checkpoint.chosen.notices;
  return outcome;
}

}  // namespace llm::exports
