#pragma once
// From a checkpoint to a Hugging Face folder.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/io/hf_config.h"
#include "llm/model/causal_lm.h"

namespace llm::exports {

/// In which dtype a model's export is written: the one that the weights in its folder have,
/// whatever config.json says; the word of that counts where there are no weights, of a run that
/// began with random ones. Throws sherd::Error as reading the weights' headers does.
[[nodiscard]] c10::ScalarType weights_dtype(model::CausalLmImpl& model, const io::HfConfig& config,
                                            const std::string& folder);

struct ExportOptions {
  std::string checkpoint;  ///< a checkpoint's folder, or a run's output folder (its newest)
  std::string out;         ///< the folder to make; it may exist, empty
  std::string
      model;  ///< where config.json and tokenizer come from; empty: the run's own model.path
  std::vector<std::string> ignored_fields = {};  ///< of config.json, beside those of the run
  std::optional<c10::ScalarType>
      dtype;  ///< of the weights; unset: that of the source model's weights
};

struct ExportOutcome {
  std::string checkpoint;                 ///< the one that was taken
  std::vector<std::string> notices = {};  ///< newer ones that are damaged: to be printed
  std::int64_t tensors = 0;
  std::int64_t file_bytes = 0;
  c10::ScalarType dtype = c10::kFloat;
};

/// An export in the making, tensor by tensor. Memory: that of sherd::read_checkpoint_values(), and
/// a block in the export's dtype. Weights appear whole or not at all, config.json is written last;
/// one that is not finished leaves nothing behind. Not collective: one process.
class CheckpointExport {
 public:
  /// Reads checkpoint and model, and makes the folder. Throws sherd::Error: InputMissing; BadData
  /// (also for a checkpoint of another model); Usage for the model's own folder, CannotWrite for
  /// another that is not empty; StorageIo.
  explicit CheckpointExport(const ExportOptions& options);
  CheckpointExport(const CheckpointExport&) = delete;
  CheckpointExport& operator=(const CheckpointExport&) = delete;
  ~CheckpointExport();

  /// How many tensors there are to write.
  [[nodiscard]] std::int64_t tensors() const;
  /// Writes the next one. Throws sherd::Error: BadData for a damaged checkpoint, StorageIo.
  void write_next();
  /// After the last one. Throws sherd::Error: as reading the model's files does, CannotWrite,
  /// StorageIo.
  ExportOutcome finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes weights (model.safetensors; above 5 GB several files and their index), config, generation
/// config, tokenizer and the files of the model's licence, as CheckpointExport does. Not
/// collective: one process. Throws sherd::Error as that does. PyTorch: `model.save_pretrained`.
ExportOutcome export_checkpoint(const ExportOptions& options);

}  // namespace llm::exports
