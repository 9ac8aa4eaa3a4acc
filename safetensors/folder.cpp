#include "files/folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "files/input.h"
#include "safetensors/weight_map.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// The folder's files that say why there is no model: pickles first, then other safetensors files.
std::string hint(const fs::path& folder) {
  std::string pickle;
  std::string other;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
    const fs::path name = file.path().filename();
    if (name.extension() == ".bin" || name.extension() == ".pt" || name.extension() == ".pth") {
      pickle = std::max(pickle, name.string());
    } else if (name.extension() == ".safetensors") {
      other = std::max(other, name.string());
    }
  }
  if (!pickle.empty()) {
    return ". It holds " + pickle +
           ", a pickle, which can run code when read, and which Sherd never reads. Convert it "
           "once, where you trust it: "
           "python -c \"from transformers import AutoModelForCausalLM as M; "
           "M.from_pretrained('FOLDER').save_pretrained('NEW_FOLDER', safe_serialization=True)\"";
  }
  return other.empty() ? "" : ". It holds " + other + ", but no index that names it";
}

[[noreturn]] void refuse_missing(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw Error(ExitCode::InputMissing,
                folder.string() + (fs::exists(folder) ? ": is not a folder" : ": no such folder"));
  }
  throw Error(ExitCode::InputMissing, folder.string() + ": no weights: looked for " + kSingleFile +
                                          " and " + kIndexFile + hint(folder));
}

SafetensorsFile open_file(const fs::path& folder, const std::string& name) {
  files::check_link(folder.string(), (folder / name).string());
  return SafetensorsFile((folder / name).string());
}

detail::WeightMap read_index(const fs::path& folder) {
  const std::string path = (folder / kIndexFile).string();
  files::check_link(folder.string(), path);
  const files::InputFile input = files::open_input(path);
  return detail::parse_weight_map(
      path, input.size_bytes, [&](uint64_t offset, void* out, size_t bytes) {
        files::read_exactly(input.descriptor.get(), path, offset, out, bytes);
      });
}

// Whether the name is taken, be it by a link that leads nowhere: opening that gives the better
// message.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder_name) {
  const fs::path folder(folder_name);
  std::error_code ignored;
  if (folder.extension() == ".safetensors" && !fs::is_directory(folder, ignored)) {
    const fs::path home = folder.has_parent_path() ? folder.parent_path() : ".";
    files_.push_back(open_file(home, folder.filename().string()));
    for (const SafetensorsEntry& entry : files_.front().entries()) {
      file_of_tensor_.emplace(entry.name, 0);
    }
    return;
  }
  if (is_there(folder / kSingleFile)) {
    files_.push_back(open_file(folder, kSingleFile));
    for (const SafetensorsEntry& entry : files_.front().entries()) {
      file_of_tensor_.emplace(entry.name, 0);
    }
    return;
  }
  if (!is_there(folder / kIndexFile)) {
    refuse_missing(folder);
  }
  std::map<std::string, size_t> opened;
  for (const auto& [tensor, file] : read_index(folder)) {
    const auto [place, is_new] = opened.emplace(file, files_.size());
    if (is_new) {
      files_.push_back(open_file(folder, file));
    }
    if (!files_[place->second].contains(tensor)) {
      throw Error(ExitCode::BadData, (folder / kIndexFile).string() + ": tensor " +
                                         files::in_quotes(tensor) + " should be in " + file +
                                         ", which has no such tensor");
    }
    file_of_tensor_.emplace(tensor, place->second);
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_tensor_.size());
  for (const auto& [name, file] : file_of_tensor_) {
    names.push_back(name);
  }
  return names;
}

std::optional<SafetensorsLocation> SafetensorsFolder::find(std::string_view name) const {
  const auto found = file_of_tensor_.find(name);
  if (found == file_of_tensor_.end()) {
    return std::nullopt;
  }
  const SafetensorsFile& file = files_[found->second];
  return SafetensorsLocation{&file, file.find(name)};
}

std::vector<SafetensorsLocation> SafetensorsFolder::unmapped() const {
  std::vector<SafetensorsLocation> left_out;
  for (size_t index = 0; index < files_.size(); ++index) {
    for (const SafetensorsEntry& entry : files_[index].entries()) {
      const auto found = file_of_tensor_.find(entry.name);
      if (found == file_of_tensor_.end() || found->second != index) {
        left_out.push_back({&files_[index], &entry});
      }
    }
  }
  return left_out;
}

}  // namespace sherd
