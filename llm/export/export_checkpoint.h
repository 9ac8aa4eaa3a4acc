#pragma once
// From a checkpoint to a Hugging Face folder: a model's, or a PEFT adapter's.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/export/export_source.h"

namespace llm::exports {

struct ExportOutcome {
  std::string checkpoint;                 ///< the one that was taken
  std::vector<std::string> notices = {};  ///< newer ones that are damaged: to be printed
  std::int64_t tensors = 0;
  std::int64_t file_bytes = 0;
  c10::ScalarType dtype = c10::kFloat;
  bool is_adapter = false;  ///< a PEFT folder, and no model
};

/// An export in the making, tensor by tensor. Memory: that of ExportSource::for_each_values(), and
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

/// Of a run that trained an adapter, and unless ExportOptions::merged: writes
/// adapter_model.safetensors, adapter_config.json and the tokenizer. Else writes weights
/// (model.safetensors; above 5 GB several files and their index), config, generation config,
/// tokenizer and the files of the model's licence, as CheckpointExport does. Not collective: one
/// process. Throws sherd::Error as that does. PyTorch: `model.save_pretrained`.
ExportOutcome export_checkpoint(const ExportOptions& options);

}  // namespace llm::exports
