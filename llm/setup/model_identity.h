#pragma once
// The content of a model folder as named values, for comparison between ranks and with earlier
// runs.

#include "llm/io/hf_config.h"
#include "llm/setup/agreement.h"
#include "llm/text/tokenizer.h"
#include "sherd/safetensors.h"

namespace llm::setup {

/// Returns what a model folder says, apart from its weights, that decides what a run computes: the
/// fields of config.json that shape the model, the digest of tokenizer.json, the end token and the
/// ids that stop generation. Paths, the order of keys and fields that change nothing have no part
/// in it. The names say where to look and never repeat. Not collective.
[[nodiscard]] Settings model_identity(const io::HfConfig& config, const text::Tokenizer& tokenizer);

/// `settings` and, after them, the model_identity(): what ranks compare at the start of a verb.
[[nodiscard]] Settings with_model_identity(Settings settings, const io::HfConfig& config,
                                           const text::Tokenizer& tokenizer);

/// Returns one value per weight file: its tensors (number and bytes) and a SHA-256 over their
/// names, dtypes, shapes and a sample of each: all elements of a small tensor, else four blocks
/// spread over it. Reads less than 20 KiB per tensor, never the whole files. Finds other revisions,
/// fine-tuned weights and half-written copies, not a single changed bit. Not collective. Throws
/// sherd::Error(StorageIo).
[[nodiscard]] Settings weights_identity(const sherd::SafetensorsFolder& weights);

}  // namespace llm::setup
