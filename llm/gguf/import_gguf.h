#pragma once
// From a GGUF file to a Hugging Face folder.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llm::gguf {

struct ImportOptions {
  std::string file;
  std::string folder;  ///< to make; it may exist, empty
};

struct ImportOutcome {
  std::string architecture;
  std::int64_t tensors = 0;
  std::int64_t file_bytes = 0;  ///< of the weights
};

/// Writes weights (F16 and BF16 as they are, all others in fp32), config.json in the spelling that
/// transformers 4 and 5 read, generation config, tokenizer and chat template. The folder appears
/// whole or not at all. Memory: the largest tensor, twice. Not collective. Throws sherd::Error:
/// InputMissing; BadData, naming key or tensor, for a file that cannot be right or holds what is
/// not implemented; CannotWrite for a folder that is not empty; StorageIo.
ImportOutcome import_gguf(const ImportOptions& options);

}  // namespace llm::gguf
