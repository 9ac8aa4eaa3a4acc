#pragma once
// Which files of a repository are fetched.

#include <set>
#include <string>
#include <vector>

#include "llm/hub/listing.h"

namespace llm::hub {

struct Choice {
  std::vector<HubFile> files;        ///< what a run reads comes last, config.json at the end
  std::vector<std::string> pickles;  ///< left out: they can run code when read
};

/// The file of this name; null where there is none.
[[nodiscard]] const HubFile* find_file(const std::vector<HubFile>& files, const std::string& path);

/// Of a model: configuration, tokenizer, chat template, licences, weights in safetensors: those of
/// `shards`, which the index names, or else a single file. Throws sherd::Error(BadData) where there
/// is no model that Sherd could read, or one of the shards is missing.
[[nodiscard]] Choice choose_model_files(const Repo& repo, const std::vector<HubFile>& files,
                                        const std::set<std::string>& shards);

}  // namespace llm::hub
