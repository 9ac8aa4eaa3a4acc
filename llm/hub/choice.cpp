#include "llm/hub/choice.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "llm/hub/weight_index.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

constexpr const char* kSingleFile = "model.safetensors";

bool is_side_file(const std::string& path) {
  constexpr std::array<std::string_view, 12> kNames{"generation_config.json",
                                                    "tokenizer_config.json",
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "vocab.json",
                                                    "merges.txt",
                                                    "vocab.txt",
                                                    "tokenizer.model",
                                                    "chat_template.jinja",
                                                    "chat_template.json",
                                                    "README.md",
                                                    kWeightIndex};
  constexpr std::array<std::string_view, 4> kLicences{"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  return std::find(kNames.begin(), kNames.end(), path) != kNames.end() ||
         (path.find('/') == std::string::npos &&
          std::any_of(kLicences.begin(), kLicences.end(),
                      [&](std::string_view start) { return path.starts_with(start); }));
}

bool is_pickle(const std::string& path) {
  constexpr std::array<std::string_view, 5> kEnds{".bin", ".pt", ".pth", ".pkl", ".ckpt"};
  return std::any_of(kEnds.begin(), kEnds.end(),
                     [&](std::string_view end) { return path.ends_with(end); });
}

// Throws where `path` is missing, with what it would be for.
void require(const Repo& repo, const std::vector<HubFile>& files, const std::string& path,
             const std::string& hint) {
  if (find_file(files, path) == nullptr) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{} has no {}{}", repo.name, path, hint));
  }
}

void require_weights(const Repo& repo, const std::vector<HubFile>& files,
                     const std::set<std::string>& shards, const std::vector<std::string>& pickles) {
  for (const std::string& shard : shards) {
    require(repo, files, shard,
            fmt::format(", which its {} names. Look for another revision", kWeightIndex));
  }
  if (shards.empty()) {
    require(repo, files, kSingleFile,
            fmt::format(": no weights in safetensors{}. Look for a revision or a conversion that "
                        "has them",
                        pickles.empty()
                            ? ""
                            : fmt::format("; {} can run code when read, and Sherd never does",
                                          fmt::join(pickles, ", "))));
  }
}

}  // namespace

const HubFile* find_file(const std::vector<HubFile>& files, const std::string& path) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const HubFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Choice choose_model_files(const Repo& repo, const std::vector<HubFile>& files,
                          const std::set<std::string>& shards) {
  Choice choice;
  const auto take = [&](const auto& is_wanted) {
    std::copy_if(files.begin(), files.end(), std::back_inserter(choice.files),
                 [&](const HubFile& file) { return is_wanted(file.path); });
  };
  for (const HubFile& file : files) {
    if (is_pickle(file.path)) {
      choice.pickles.push_back(file.path);
    }
  }
  require(repo, files, "config.json", ": it is not a model in Hugging Face's format");
  require(repo, files, "tokenizer.json",
          ", which is the only form of a tokenizer that Sherd reads. Another repository of the "
          "same model may have one");
  require_weights(repo, files, shards, choice.pickles);
  take(is_side_file);
  take([&](const std::string& path) {
    return shards.empty() ? path == kSingleFile : shards.contains(path);
  });
  take([](const std::string& path) { return path == "tokenizer.json"; });
  take([](const std::string& path) { return path == "config.json"; });
  return choice;
}

}  // namespace llm::hub
