#include "llm/export/export_checkpoint.h"

#include <filesystem>
#include <limits>
#include <system_error>

#include <ATen/ops/from_blob.h>

#include "files/folder.h"
#include "files/output.h"
#include "llm/adapters/peft_config.h"
#include "llm/adapters/peft_weights.h"
#include "llm/io/export.h"
#include "llm/io/weight_files.h"
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

constexpr const char* kPeftStem = "adapter_model";

// A model as others find it: its name on a hub with the commit, or its folder without one.
struct NamedBase {
  std::string name;
  std::string revision = {};
};

// A snapshot in the hub's cache lies in …/models--ORG--NAME/snapshots/COMMIT.
NamedBase named_base(const std::string& folder) {
  const fs::path snapshot = fs::path(folder).lexically_normal();
  const fs::path snapshots = snapshot.parent_path();
  std::string name = snapshots.parent_path().filename().string();
  const std::string prefix = "models--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(prefix)) {
    return {folder};
  }
  name.erase(0, prefix.size());
  if (const std::size_t dashes = name.find("--"); dashes != std::string::npos) {
    name.replace(dashes, 2, "/");
  }
  return {name, snapshot.filename().string()};
}

// adapter_config.json, and next to it the tokenizer, as trainers leave it for those who converse.
void write_adapter_config(const ExportSource& source, const std::string& out) {
  io::copy_tokenizer(source.model, out, source.chat);
  const NamedBase base = named_base(source.model);
  sherd::files::write_file(
      out + "/" + adapters::kPeftConfigFile,
      adapters::peft_config_text(*source.shapes, source.adapter, base.name,
                                 source.config.shape.tied_embedding, base.revision));
}

}  // namespace

// The source and the files of an export, found out before anything is written.
struct CheckpointExport::State {
  explicit State(const ExportOptions& options)
      : source(options),
        out(options.out, source.model),
        weights(source.adapter.kind == config::AdapterKind::None
                    ? io::WeightFiles(options.out, source.specs)
                    : io::WeightFiles(
                          options.out,
                          adapters::peft_specs(*source.shapes, source.adapter, source.dtype),
                          std::numeric_limits<std::int64_t>::max(), kPeftStem)) {}

  ExportSource source;
  OutFolder out;
  io::WeightFiles weights;  // gone before their folder
  std::size_t written = 0;
};

CheckpointExport::CheckpointExport(const ExportOptions& options)
    : state_(std::make_unique<State>(options)) {}

CheckpointExport::~CheckpointExport() = default;

std::int64_t CheckpointExport::tensors() const {
  return static_cast<std::int64_t>(state_->source.specs.size());
}

void CheckpointExport::write_next() {
  const ExportSource& source = state_->source;
  const sherd::SafetensorsSpec& spec = source.specs.at(state_->written++);
  const bool is_adapter = source.adapter.kind != config::AdapterKind::None;
  const std::string name = is_adapter ? adapters::peft_name(spec.name) : spec.name;
  source.for_each_values(spec.name, [&](const float* values, int64_t numel) {
    state_->weights.write(
        name, at::from_blob(const_cast<float*>(values), {numel}, at::kFloat).to(source.dtype));
  });
}

ExportOutcome CheckpointExport::finish() {
  const ExportSource& source = state_->source;
  state_->weights.finish();
  const bool is_adapter = source.adapter.kind != config::AdapterKind::None;
  if (is_adapter) {
    write_adapter_config(source, state_->out.path());
  } else {
    source.write_words(state_->out.path());
  }
  state_->out.keep();
  return {source.checkpoint, source.chosen.notices,
          tensors(),         state_->weights.file_bytes(),
          source.dtype,      is_adapter};
}

ExportOutcome export_checkpoint(const ExportOptions& options) {
  CheckpointExport work(options);
  for (std::int64_t i = 0; i < work.tensors(); ++i) {
    work.write_next();
  }
  return work.finish();
}

}  // namespace llm::exports
