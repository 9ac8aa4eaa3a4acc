#pragma once
// Selects the files of a repository to fetch.

#include <set>
#include <string>
#include <vector>

#include "llm/hub/listing.h"

namespace llm::hub {

struct Choice {
  std::vector<HubFile> files;        ///< files that a run reads come last, config.json at the end
  std::vector<std::string> pickles;  ///< skipped: they can run code when read
};

/// Returns the file of this name; null if there is none.
[[nodiscard]] const HubFile* find_file(const std::vector<HubFile>& files, const std::string& path);

/// Selects a model's configuration, tokenizer, chat template, licences and safetensors weights: the
/// `shards` that the index names, or else a single file. Throws sherd::Error(BadData) if there is
/// no model that Sherd can read, or if a shard is missing.
[[nodiscard]] Choice choose_model_files(const Repo& repo, const std::vector<HubFile>& files,
                                        const std::set<std::string>& shards);

}  // namespace llm::hub
