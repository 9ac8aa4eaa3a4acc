#pragma once
// From a checkpoint, or a model folder, to a GGUF file for llama.cpp and Ollama.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/export/export_source.h"
#include "llm/gguf/model_writer.h"

namespace llm::exports {

struct GgufOptions {
  ExportOptions source = {};      ///< `out` and `dtype` are not looked at
  std::string model_folder = {};  ///< in place of a checkpoint; empty: none
  std::string out = {};           ///< a file that ends with .gguf, or a folder for model.gguf
  std::optional<gguf::FileKind> kind = std::nullopt;  ///< unset: that of the model's weights
};

struct GgufOutcome {
  std::string source;                     ///< the checkpoint that was taken, or the folder
  std::vector<std::string> notices = {};  ///< newer checkpoints that are damaged: to be printed
  std::string file = {};
  std::string modelfile = {};  ///< for Ollama
  std::int64_t tensors = 0;
  std::int64_t file_bytes = 0;
  gguf::FileKind kind = gguf::FileKind::F32;
};

/// "f32", "f16", "bf16" or "q8_0".
[[nodiscard]] const char* name_of_kind(gguf::FileKind kind);

/// Writes weights, tokenizer, chat template and stop tokens as one file, and a Modelfile that names
/// it: `Modelfile` in a folder, `x.Modelfile` beside `x.gguf`. Each appears whole or not at all.
/// Memory: the largest tensor in fp32, twice. Not collective: one process. Throws sherd::Error:
/// InputMissing; BadData, also for what llama.cpp cannot compute; CannotWrite, also where one of
/// the two exists; StorageIo.
GgufOutcome export_gguf(const GgufOptions& options);

}  // namespace llm::exports
