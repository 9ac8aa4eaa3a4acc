#include <algorithm>
#include <filesystem>
#include <utility>

#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "src/safetensors/posix_file.h"
#include "src/safetensors/weight_map.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// A link may point into its own folder, or from a snapshot of the hub cache
// (models--x/snapshots/revision) into that model's blobs; nowhere else, so that a folder from a
// stranger cannot name the reader's other files.
void check_link(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  if (error) {
    return;  // opening it says why
  }
  const fs::path home = fs::canonical(folder, error);
  const bool is_snapshot = home.parent_path().filename() == "snapshots";
  const fs::path blobs = home.parent_path().parent_path() / "blobs";
  if (!is_within(target, home) && !(is_snapshot && is_within(target, blobs))) {
    throw Error(
        ExitCode::BadData,
        file.string() + ": links to " + target.string() +
            ", outside of its folder: copy the file there, or name the folder it points to");
  }
}

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
  check_link(folder, folder / name);
  return SafetensorsFile((folder / name).string());
}

detail::WeightMap read_index(const fs::path& folder) {
  const std::string path = (folder / kIndexFile).string();
  check_link(folder, path);
  const detail::InputFile input = detail::open_input(path);
  return detail::parse_weight_map(
      path, input.size_bytes, [&](uint64_t offset, void* out, size_t bytes) {
        detail::read_exactly(input.descriptor.get(), path, offset, out, bytes);
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
                                         detail::in_quotes(tensor) + " is said to be in " + file +
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
