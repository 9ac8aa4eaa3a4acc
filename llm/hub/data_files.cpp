#include "llm/hub/data_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "sherd/error.h"

namespace llm::hub {
namespace {

using sherd::Error;
using sherd::ExitCode;

struct DataFile {
  std::string path;
  std::string config;
  std::string split;
};

bool is_data(const std::string& path) {
  return path.ends_with(".parquet") || path.ends_with(".jsonl");
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "validation" for all that is called so.
std::string split_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  constexpr std::array<std::string_view, 3> kValidation{"valid", "val", "dev"};
  return std::find(kValidation.begin(), kValidation.end(), name) != kValidation.end() ? "validation"
                                                                                      : name;
}

DataFile data_file_of(const std::string& path) {
  std::vector<std::string> folders;
  std::size_t begin = 0;
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', begin)) {
    folders.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::string stem = path.substr(begin, path.rfind('.') - begin);
  std::string split = stem.substr(0, stem.find('-'));
  if (is_number(stem) && !folders.empty()) {  // CONFIG/SPLIT/0000.parquet
    split = folders.back();
    folders.pop_back();
  }
  const std::string config = fmt::format("{}", fmt::join(folders, "/"));
  return {path, config.empty() || config == "data" ? "default" : config, split_of(split)};
}

// M of a name that ends in "-N-of-M…", else 0.
std::size_t files_of_split(const std::string& path) {
  const std::size_t at = path.rfind("-of-");
  std::size_t count = 0;
  if (at != std::string::npos) {
    std::from_chars(path.data() + at + 4, path.data() + path.size(), count);
  }
  return count;
}

std::string listed(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string chosen_config(const Repo& repo, const std::vector<DataFile>& files,
                          const std::string& wanted) {
  std::set<std::string> configs;
  for (const DataFile& file : files) {
    configs.insert(file.config);
  }
  if (wanted.empty() && configs.size() == 1) {
    return *configs.begin();
  }
  if (wanted.empty() && configs.contains("default")) {
    return "default";
  }
  if (wanted.empty()) {
    throw Error(ExitCode::Usage,
                fmt::format("{} has several configurations: {}. Name one: `sherd fetch {} "
                            "--dataset --config {}`, or {}:{}/SPLIT as a path",
                            repo.name, listed(configs), repo.name, *configs.begin(), repo.name,
                            *configs.begin()));
  }
  if (!configs.contains(wanted)) {
    throw Error(ExitCode::InputMissing, fmt::format("{} has no configuration '{}'. It has: {}",
                                                    repo.name, wanted, listed(configs)));
  }
  return wanted;
}

void require_whole(const Repo& repo,
                   const std::map<std::string, std::vector<std::string>>& splits) {
  for (const auto& [split, paths] : splits) {
    const std::size_t count = files_of_split(paths.front());
    if (count > paths.size()) {
      throw Error(ExitCode::BadData, fmt::format("{} has {} of the {} files of its split '{}'",
                                                 repo.name, paths.size(), count, split));
    }
  }
}

}  // namespace

std::vector<std::string> choose_data_files(const Repo& repo, const std::vector<std::string>& paths,
                                           const DataPart& part) {
  std::vector<DataFile> files;
  for (const std::string& path : paths) {
    if (is_data(path)) {
      files.push_back(data_file_of(path));
    }
  }
  if (files.empty()) {
    throw Error(
        ExitCode::BadData,
        fmt::format(
            "{} has no data in Parquet or JSON lines. Hubs often keep a copy of it in Parquet: "
            "`sherd fetch {} --dataset --revision refs/convert/parquet` downloads it",
            repo.name, repo.name));
  }
  const std::string config = chosen_config(repo, files, part.config);
  std::map<std::string, std::vector<std::string>> splits;
  std::set<std::string> names;
  for (const DataFile& file : files) {
    if (file.config == config) {
      names.insert(file.split);
      if (part.split.empty() || file.split == split_of(part.split)) {
        splits[file.split].push_back(file.path);
      }
    }
  }
  if (splits.empty()) {
    throw Error(ExitCode::InputMissing, fmt::format("{} has no split '{}' in '{}'. It has: {}",
                                                    repo.name, part.split, config, listed(names)));
  }
  require_whole(repo, splits);
  std::vector<std::string> chosen;
  for (auto& [split, of_split] : splits) {
    std::sort(of_split.begin(), of_split.end());
    chosen.insert(chosen.end(), of_split.begin(), of_split.end());
  }
  return chosen;
}

NamedData named_data(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string part = text.substr(std::min(colon + 1, text.size()));
  const std::size_t slash = part.rfind('/');
  return slash == std::string::npos
             ? NamedData{text.substr(0, colon), {"", part}}
             : NamedData{text.substr(0, colon), {part.substr(0, slash), part.substr(slash + 1)}};
}

}  // namespace llm::hub
