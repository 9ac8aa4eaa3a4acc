#include "checkpoint/files.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "sherd/error.h"

namespace sherd::detail {

namespace fs = std::filesystem;

namespace {

// Whether a save writes files of this name, also as temporary files.
bool is_checkpoint_file(const std::string& name) {
  const bool shard = name.starts_with("shard-") && name.find(".safetensors") != std::string::npos;
  return shard || name.starts_with(kManifestName);
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
    throw Error(ExitCode::CannotWrite,
                "'" + folder + "' names no folder that a checkpoint could be.");
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
    not_replaced(folder, "is a file, and no checkpoint");
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_checkpoint_file(name)) {
      not_replaced(folder, "holds '" + name + "', which is no part of a checkpoint");
    }
  }
  if (error) {
    not_replaced(folder, "cannot be looked into (" + error.message() + ")");
  }
}

}  // namespace sherd::detail
