#pragma once
// Which files of a repository are fetched.

#include <string>
#include <vector>

#include "llm/hub/listing.h"

namespace llm::hub {

struct Choice {
  std::vector<HubFile> files;        ///< what a run reads comes last, config.json at the end
  std::vector<std::string> pickles;  ///< left out: they can run code when read
};

/// Of a model: configuration, tokenizer, chat template, licences, weights in safetensors. Throws
/// sherd::Error(BadData) where there is no model that Sherd could read.
[[nodiscard]] Choice choose_model_files(const Repo& repo, const std::vector<HubFile>& files);

}  // namespace llm::hub
