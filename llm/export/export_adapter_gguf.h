#pragma once
// A run's adapter as a GGUF file, which llama.cpp adds to a base (`--lora`).

#include <cstdint>
#include <optional>
#include <string>

#include "llm/export/export_source.h"
#include "llm/gguf/model_writer.h"

namespace llm::exports {

struct AdapterGguf {
  std::string file;
  std::int64_t tensors = 0;
  std::int64_t file_bytes = 0;
  gguf::FileKind kind = gguf::FileKind::F32;
};

/// Writes the adapter of `source` to `out`, a file that ends with .gguf or a folder for
/// adapter.gguf: A and B of each adapted map, B in the row order that the base has in GGUF. Where
/// maps have different scales, B holds what llama.cpp's alpha ÷ rank does not. `kind`: F32 if
/// unset. Throws sherd::Error: BadData for a family that has no GGUF and for modules that are
/// trained whole; Usage for Q8_0; CannotWrite, also where the file exists; StorageIo.
AdapterGguf write_adapter_gguf(const ExportSource& source, const std::string& out,
                               const std::optional<gguf::FileKind>& kind);

}  // namespace llm::exports
