#include "state/checkpoint_files.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace sherd::detail {

namespace fs = std::filesystem;

namespace {

// What follows `prefix` and at least one digit in `name`; nothing for another name.
std::optional<std::string_view> after_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  const auto end =
      std::find_if(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) == 0; });
  const auto digits = static_cast<size_t>(end - name.begin());
  return digits == 0 ? std::nullopt : std::optional(name.substr(digits));
}

// Whether a save writes files of this name; temporary ones end in ".tmp-<process id>".
bool is_checkpoint_file(std::string_view name) {
  std::string_view rest = name;
  if (rest.starts_with(kManifestName)) {
    rest.remove_prefix(std::string_view(kManifestName).size());
  } else {
    constexpr std::string_view kEnd = ".safetensors";
    const auto rank = after_number(name, "shard-");
    const auto of = rank ? after_number(*rank, "-of-") : std::nullopt;
    if (!of || !of->starts_with(kEnd)) {
      return false;
    }
    rest = of->substr(kEnd.size());
  }
  return rest.empty() || after_number(rest, ".tmp-") == std::string_view();
}

[[noreturn]] void not_replaced(const std::string& folder, const std::string& what) {
  throw Error(ExitCode::CannotWrite,
              "'" + folder + "' " + what + ": it is not replaced. Choose another folder.");
}

}  // namespace

std::string shard_file_name(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

std::string checkpoint_path(const std::string& folder) {
  fs::path path = fs::path(folder).lexically_normal();
  path = path.has_filename() ? path : path.parent_path();
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..") {
    throw Error(ExitCode::CannotWrite, "'" + folder + "' cannot be the folder of a checkpoint.");
  }
  std::error_code error;
  return fs::is_symlink(path, error) ? fs::weakly_canonical(path, error).string() : path.string();
}

void check_replaceable(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (!fs::exists(status)) {
    return;
  }
  if (!fs::is_directory(status)) {
    not_replaced(folder, "is a file, not a checkpoint");
  }
  static_cast<void>(fs::directory_iterator(folder, error));
  if (error) {
    not_replaced(folder, "cannot be read (" + error.message() + ")");
  }
  if (const auto others = names_beside_checkpoint(folder); !others.empty()) {
    not_replaced(folder, "holds '" + others.front() + "', which is not part of a checkpoint");
  }
}

}  // namespace sherd::detail

namespace sherd {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const std::string& folder, bool of_checkpoint) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (detail::is_checkpoint_file(name) == of_checkpoint) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());  // the manifest before shards
  return names;
}

}  // namespace

std::vector<std::string> names_beside_checkpoint(const std::string& folder) {
  return names_in(folder, false);
}

bool has_checkpoint_files(const std::string& folder) {
  return !names_in(folder, true).empty();
}

void remove_checkpoint(const std::string& folder) {
  std::error_code ignored;
  if (fs::is_symlink(folder, ignored)) {
    fs::remove(folder, ignored);
    return;
  }
  for (const std::string& name : names_in(folder, true)) {
    fs::remove(fs::path(folder) / name, ignored);
  }
  fs::remove(folder, ignored);  // fails, as intended, if something is left
}

CheckpointManifest require_checkpoint_files(const std::string& folder) {
  CheckpointManifest manifest = CheckpointManifest::read(folder);
  std::map<std::string, SafetensorsFile> files;
  const auto require = [&](const auto& tensors) {
    for (const auto& [name, tensor] : tensors) {
      for (const CheckpointPiece& piece : tensor.pieces) {
        const std::string path = folder + "/" + piece.file;
        const SafetensorsFile& file = files.try_emplace(piece.file, path).first->second;
        for (const auto& [kind, digest] : piece.sha256) {
          const SafetensorsEntry* entry = file.find(kind + "/" + name);
          if (entry == nullptr || entry->numel() != piece.end - piece.begin) {
            throw Error(ExitCode::BadData,
                        path + ": tensor '" + kind + "/" + name + "' does not match the manifest");
          }
        }
      }
    }
  };
  require(manifest.parameters);
  if (manifest.buffers) {
    require(*manifest.buffers);
  }
  return manifest;
}

}  // namespace sherd
