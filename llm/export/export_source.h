#pragma once
// A checkpoint, or a PEFT adapter, with the model it belongs to: every export begins with one.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "llm/config/run_config.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/checkpoints.h"
#include "sherd/checkpoint.h"
#include "sherd/safetensors.h"

namespace llm::exports {

/// In which dtype a model's export is written: the one that the weights in its folder have,
/// whatever config.json says; the word of that counts where there are no weights, of a run that
/// began with random ones. Throws sherd::Error as reading the weights' headers does.
[[nodiscard]] c10::ScalarType weights_dtype(model::CausalLmImpl& model, const io::HfConfig& config,
                                            const std::string& folder);

struct ExportOptions {
  /// A checkpoint's folder, a run's output folder (its newest), or a PEFT adapter's folder.
  std::string checkpoint = {};
  std::string out;  ///< the folder to make; it may exist, empty
  /// Source of config.json, tokenizer and untrained weights; empty: the run's own model.path, of a
  /// PEFT adapter the base that its adapter_config.json names.
  std::string model = {};
  std::vector<std::string> ignored_fields = {};  ///< of config.json, besides those of the run
  /// Of a run that trained an adapter: the sum of the model and the adapter, not the adapter.
  bool merged = false;
  /// Of the weights; unset: that of the source model's weights, of an adapter fp32.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

/// The weights of a model folder, open as long as they are read.
struct FolderWeights {
  /// Throws sherd::Error as io::match_weights() does.
  FolderWeights(const std::string& folder, const model::CausalLmImpl& model)
      : files(folder), places(io::match_weights(model, files)) {}
  /// The place of a parameter of the model.
  [[nodiscard]] const sherd::SafetensorsLocation& location_of(const std::string& parameter) const;

  sherd::SafetensorsFolder files;
  std::vector<io::WeightSource> places;
};

/// The source of an export, read before anything is written: a model, or an adapter alone.
struct ExportSource {
  /// Reads checkpoint and model; `out` is not looked at. Throws sherd::Error: InputMissing;
  /// BadData, also for a checkpoint of another model or over another base; Usage for a merged
  /// export of a run without an adapter; StorageIo.
  explicit ExportSource(const ExportOptions& options);

  using TakeValues = std::function<void(const float* values, std::int64_t numel)>;
  /// Calls `take` with fp32 values of a parameter in order: those of the checkpoint, or of its base
  /// where that was not trained; of a merged export with those of the adapter added. Memory: that
  /// of sherd::read_checkpoint_values(), 16 MiB for the base; three times a merged parameter.
  /// Throws sherd::Error: BadData for a damaged checkpoint, StorageIo.
  void for_each_values(const std::string& parameter, const TakeValues& take) const;

  /// All values of a parameter, in fp32 and in its shape.
  [[nodiscard]] at::Tensor values(const std::string& parameter) const;

  /// Writes all of a model folder but its weights. Throws as io::copy_config_and_tokenizer().
  void write_words(const std::string& out) const;
  /// Whether write_words() writes other words than the folder of the model has.
  [[nodiscard]] bool has_own_words() const { return chat || !tokenizer.empty(); }

  setup::IntactCheckpoint chosen;
  std::string checkpoint;
  sherd::CheckpointManifest manifest;
  std::string model;                        ///< the folder of config and tokenizer
  std::string tokenizer = {};               ///< the folder of a PEFT adapter that has its own
  std::vector<std::string> ignored_fields;  ///< of its config.json
  io::HfConfig config;
  std::optional<io::ExportedChat> chat;       ///< how the run taught its model to converse
  c10::ScalarType dtype = c10::kFloat;        ///< of the weights; of an adapter fp32 if unset
  config::AdapterSection adapter = {};        ///< that is exported alone; of kind None: a model is
  model::CausalLm shapes{nullptr};            ///< of the run, on meta, with its adapter
  std::map<std::string, double> scale_of;     ///< by weight that an adapter is added to
  std::vector<sherd::SafetensorsSpec> specs;  ///< of the parameters to write, in that dtype
  /// The weights of `model`, where the checkpoint holds a part of the parameters; else null.
  std::unique_ptr<const FolderWeights> base;

 private:
  void open_checkpoint(const ExportOptions& options);
  void open_adapter(const ExportOptions& options);
  void read_config(const config::RunConfig& run, const ExportOptions& options);
  void build_shapes(const config::RunConfig& run);
  void find_adapter(const config::RunConfig& run, const ExportOptions& options);
  void for_each_stored_values(const std::string& parameter, const TakeValues& take) const;
  // All of what one of the two gives, in the parameter's shape.
  [[nodiscard]] at::Tensor gathered(const std::string& parameter,
                                    void (ExportSource::*each)(const std::string&,
                                                               const TakeValues&) const) const;

  std::unique_ptr<const sherd::SafetensorsFolder> adapter_file_;  // of PEFT
};

}  // namespace llm::exports
