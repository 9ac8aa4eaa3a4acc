#pragma once
// A checkpoint with the model it belongs to: what every export begins with.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

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
  std::string checkpoint = {};  ///< a checkpoint's folder, or a run's output folder (its newest)
  std::string out;              ///< the folder to make; it may exist, empty
  std::string
      model;  ///< where config.json and tokenizer come from; empty: the run's own model.path
  std::vector<std::string> ignored_fields = {};  ///< of config.json, beside those of the run
  std::optional<c10::ScalarType>
      dtype;  ///< of the weights; unset: that of the source model's weights
};

/// The weights of a model folder, open as long as they are read.
struct FolderWeights {
  /// Throws sherd::Error as io::match_weights() does.
  FolderWeights(const std::string& folder, const model::CausalLmImpl& model)
      : files(folder), places(io::match_weights(model, files)) {}
  /// Where a parameter of the model lies.
  [[nodiscard]] const sherd::SafetensorsLocation& location_of(const std::string& parameter) const;

  sherd::SafetensorsFolder files;
  std::vector<io::WeightSource> places;
};

/// What is exported, found out before anything is written.
struct ExportSource {
  /// Reads checkpoint and model; `out` is not looked at. Throws sherd::Error: InputMissing;
  /// BadData, also for a checkpoint of another model or over another base; StorageIo.
  explicit ExportSource(const ExportOptions& options);

  using TakeValues = std::function<void(const float* values, std::int64_t numel)>;
  /// Calls `take` with fp32 values of a parameter in order: those of the checkpoint, or of its base
  /// where that was not trained. Memory: that of sherd::read_checkpoint_values(); 16 MiB for the
  /// base. Throws sherd::Error: BadData for a damaged checkpoint, StorageIo.
  void for_each_values(const std::string& parameter, const TakeValues& take) const;

  setup::IntactCheckpoint chosen;
  std::string checkpoint;
  sherd::CheckpointManifest manifest;
  std::string model;                        ///< the folder of config and tokenizer
  std::vector<std::string> ignored_fields;  ///< of its config.json
  io::HfConfig config;
  std::optional<io::ExportedChat> chat;       ///< how the run taught its model to converse
  c10::ScalarType dtype = c10::kFloat;        ///< of the weights
  std::vector<sherd::SafetensorsSpec> specs;  ///< of the tensors, in that dtype
  /// The weights of `model`, where the checkpoint holds a part of the parameters; else null.
  std::unique_ptr<const FolderWeights> base;
};

}  // namespace llm::exports
