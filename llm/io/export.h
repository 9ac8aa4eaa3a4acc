#pragma once
// What a Hugging Face folder holds beside and around its weights.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/model/causal_lm.h"
#include "sherd/safetensors.h"

namespace llm::io {

/// Name, dtype and shape of each tensor of an exported model, in order. The model may be on meta; a
/// parameter and its tensor are called alike, a tied head has no tensor, and neither have adapters.
[[nodiscard]] std::vector<sherd::SafetensorsSpec> export_specs(const model::CausalLmImpl& model,
                                                               c10::ScalarType dtype);

/// Which files beside config.json make a model folder complete, relative to it:
/// generation_config.json, the tokenizer's, chat templates (`additional_chat_templates/` too), and
/// those of its licence (LICENSE, LICENCE, COPYING, MODEL_LICENSE, NOTICE, USE_POLICY and README,
/// whatever follows and in any case, and the files in `LICENSES/`), as far as they are there.
/// Throws Error(BadData) if one of them, or config.json, is a link that leads out of the folder:
/// another file's content would leave with the export.
[[nodiscard]] std::vector<std::string> copied_files(const std::string& source_folder);

/// The bytes of copied_files(), which can all be copied. Throws Error: as that does; InputMissing,
/// BadData for one that cannot be read, is no regular file or has more than 128 MiB.
[[nodiscard]] std::int64_t copied_bytes(const std::string& source_folder);

/// How a model was taught to converse.
struct ExportedChat {
  std::string stop_token;          ///< that was learned as the end of an answer; empty: none
  std::int64_t stop_id = 0;        ///< its id
  std::string chat_template = {};  ///< that was learned by; empty: the folder's own
};

/// Copies copied_files(), changed for a model that was taught to converse as
/// copy_config_and_tokenizer() says, but not config.json. Throws as that.
void copy_tokenizer(const std::string& source_folder, const std::string& out_folder,
                    const std::optional<ExportedChat>& chat = std::nullopt);

/// Copies the tokenizer's files, the chat templates and generation_config.json of a folder, over
/// those that are there. Throws as copied_files() and copied_bytes() do; CannotWrite, StorageIo.
void copy_own_tokenizer(const std::string& source_folder, const std::string& out_folder);

/// Copies what makes a model folder complete: config.json, with its dtype field (in the spelling it
/// has) set to `dtype` and all else kept; and copied_files(). Each appears whole or not at all;
/// config.json comes last. Of a model that was taught to converse, the stop token becomes eos in
/// config.json, generation_config.json, tokenizer_config.json and special_tokens_map.json (in lists
/// of ids it comes first), and the chat template is written to chat_template.jinja. Throws Error:
/// InputMissing, BadData for what cannot be read; CannotWrite, StorageIo.
void copy_config_and_tokenizer(const std::string& source_folder, const std::string& out_folder,
                               c10::ScalarType dtype,
                               const std::optional<ExportedChat>& chat = std::nullopt);

}  // namespace llm::io
