#include "llm/export/export_run.h"

#include <filesystem>
#include <system_error>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/json.h"
#include "files/output.h"
#include "files/sha256.h"
#include "llm/adapters/peft_config.h"
#include "llm/export/export_checkpoint.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/setup/agreement.h"
#include "llm/setup/checkpoints.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::exports {

namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;
using sherd::Error;
using sherd::ExitCode;

constexpr std::uint64_t kLargestManifest_bytes = std::uint64_t{1} << 30;

std::string record_path(const std::string& output) {
  return export_folder(output) + ".json";
}

// Known by its content: the same step of another run is another checkpoint.
std::string digest_of(const std::string& checkpoint) {
  return files::sha256_of(files::read_file(checkpoint + "/manifest.json", kLargestManifest_bytes));
}

void write_record(const std::string& output, const std::string& checkpoint,
                  const std::string& digest) {
  const nlohmann::ordered_json record = {{"checkpoint", fs::path(checkpoint).filename().string()},
                                         {"manifest_sha256", digest}};
  files::write_file(record_path(output), record.dump() + "\n");
}

bool is_exported(const std::string& output, const std::string& digest) {
  if (!fs::is_regular_file(record_path(output)) ||
      (!fs::is_regular_file(export_folder(output) + "/config.json") &&
       !fs::is_regular_file(export_folder(output) + "/" + adapters::kPeftConfigFile))) {
    return false;
  }
  return files::read_json_object(record_path(output)).value("manifest_sha256", "") == digest;
}

// The checkpoint to export; empty if there is none, or it is exported already.
std::string checkpoint_to_export(const config::RunConfig& config, const std::string& last,
                                 const std::optional<runs::BestEvaluation>& best,
                                 const track::Say& say) {
  const setup::Checkpoints checkpoints(config.train.output);
  const bool of_best = config.checkpoint.export_of == config::ExportOf::Best;
  if (config.checkpoint.export_of == config::ExportOf::None) {
    return "";
  }
  if (of_best && !best) {
    say(
        fmt::format("nothing is exported: no evaluation after a step has a finite {}, so there is "
                    "no best one (checkpoint.export = \"best\"). Export another checkpoint: sherd "
                    "export --checkpoint {} --out FOLDER.",
                    runs::name_of(runs::measure_of(config.eval)), config.train.output));
    return "";
  }
  const std::string folder = of_best ? checkpoints.folder_of(best->step).string() : last;
  if (!fs::is_regular_file(fs::path(folder) / "manifest.json")) {
    throw Error(ExitCode::InputMissing,
                fmt::format("checkpoint.export: there is no checkpoint of the best evaluation, {}, "
                            "in '{}'. Export another: sherd export --checkpoint FOLDER --out OUT.",
                            best ? best->text() : "", checkpoints.root().string()));
  }
  return is_exported(config.train.output, digest_of(folder)) ? "" : folder;
}

// The record comes first, so that a folder is known as a run's, and names the checkpoint last.
void give_name(const std::string& finished, const std::string& output,
               const std::string& checkpoint) {
  write_record(output, checkpoint, "");
  files::replace_folder(finished, export_folder(output));
  write_record(output, checkpoint, digest_of(checkpoint));
}

std::string exported_line(const ExportOutcome& outcome, const std::string& folder) {
  return fmt::format("exported {} to {}: {}{} tensors, {}, {}", outcome.checkpoint, folder,
                     outcome.is_adapter ? "a PEFT adapter, " : "", outcome.tensors,
                     track::short_bytes(outcome.file_bytes), io::name_of_dtype(outcome.dtype));
}

}  // namespace

std::string export_folder(const std::string& output) {
  return (fs::path(output) / "export").string();
}

void require_place_of_export(const config::RunConfig& config) {
  const std::string folder = export_folder(config.train.output);
  std::error_code ignored;
  const bool is_there = fs::exists(fs::symlink_status(folder, ignored));  // also a link to nothing
  if (config.checkpoint.export_of != config::ExportOf::None && is_there &&
      !fs::is_regular_file(record_path(config.train.output), ignored)) {
    throw Error(ExitCode::CannotWrite,
                fmt::format("'{}' exists and was not written by a run: checkpoint.export would "
                            "replace it. Move it away, or set train.output to another folder.",
                            folder));
  }
}

std::int64_t export_bytes(const config::RunConfig& config, const setup::ModelShape& shape) {
  if (config.checkpoint.export_of == config::ExportOf::None) {
    return 0;
  }
  const std::string& folder = config.model.path;
  model::CausalLm model = shape.shapes;
  if (config.adapter.kind != config::AdapterKind::None) {
    return io::copied_bytes(folder) +
           shape.trained * static_cast<std::int64_t>(c10::elementSize(c10::kFloat));
  }
  const c10::ScalarType dtype = weights_dtype(*model, shape.config, folder);
  return io::copied_bytes(folder) +
         shape.parameters * static_cast<std::int64_t>(c10::elementSize(dtype));
}

bool export_run(const config::RunConfig& config, const std::string& last,
                const std::optional<runs::BestEvaluation>& best, sherd::World& world,
                const std::function<bool()>& stop_requested, const track::Say& say) {
  const std::string checkpoint =
      setup::from_rank_0(world, [&] { return checkpoint_to_export(config, last, best, say); });
  if (checkpoint.empty()) {
    return true;
  }
  const std::string& output = config.train.output;
  const std::string making = export_folder(output) + ".tmp";
  std::optional<CheckpointExport> work;  // on rank 0
  const std::string tensors = setup::from_rank_0(world, [&] {
    files::remove_folder(making);
    work.emplace(
        ExportOptions{.checkpoint = checkpoint, .out = making, .model = "", .dtype = std::nullopt});
    return std::to_string(work->tensors());
  });
  for (std::int64_t i = 0; i < std::stoll(tensors); ++i) {
    const std::string stops = setup::from_rank_0(world, [&] {
      work->write_next();
      return std::string(stop_requested() ? "stop" : "");
    });
    if (!stops.empty()) {
      return false;
    }
  }
  setup::on_all_ranks(world, [&] {
    if (work) {
      const sherd::WorkPhase finishing(world, "finishing the export", setup::kLongestSilence);
      const ExportOutcome outcome = work->finish();
      give_name(making, output, checkpoint);
      say(exported_line(outcome, export_folder(output)));
    }
  });
  return true;
}

}  // namespace llm::exports
