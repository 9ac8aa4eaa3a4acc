#pragma once
// The reference of a run that learns from preference pairs, known by its content.

#include <string>

#include "llm/config/run_config.h"
#include "llm/io/hf_config.h"
#include "llm/setup/run_note.h"
#include "llm/text/tokenizer.h"

namespace llm::setup {

/// Returns the SHA-256 over the weights of a run's model before its first step: all bytes of
/// model.path's, or what random ones are drawn by; and the files in adapter.path. A fresh adapter
/// has no part in it, since it changes nothing at first. `base`: the digest of model.path's weights
/// where it is known; empty: they are read. Not collective. Throws sherd::Error as base_weights();
/// InputMissing, StorageIo.
[[nodiscard]] std::string start_weights(const config::RunConfig& config,
                                        const io::HfConfig& model_config, const std::string& base);

/// Returns the key of the log-probabilities that this model gives to pairs: start_weights(),
/// model_identity(), and the settings that decide how they are computed. Not collective. Throws as
/// start_weights().
[[nodiscard]] ReferenceKey reference_key(const config::RunConfig& config,
                                         const io::HfConfig& model_config,
                                         const text::Tokenizer& tokenizer, const std::string& base);

/// For messages about start_weights() that differ: both digests, and which folders to restore.
[[nodiscard]] std::string changed_start(const std::string& then, const std::string& now,
                                        const config::RunConfig& config);

}  // namespace llm::setup
