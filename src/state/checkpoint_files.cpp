#include "state/checkpoint_files.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string_view>
#include <system_error>

#include "files/input.h"
#include "files/json.h"
#include "files/sha256.h"
#include "sherd/error.h"

namespace sherd {

namespace fs = std::filesystem;

namespace detail {

namespace {

// Takes `text`, or digits, from the beginning of `name`. Returns false if it begins with neither.
bool take(std::string_view& name, std::string_view text) {
  const bool is_there = name.substr(0, text.size()) == text;
  name.remove_prefix(is_there ? text.size() : 0);
  return is_there;
}
bool take_digits(std::string_view& name) {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  name.remove_prefix(digits);
  return digits > 0;
}

// Returns true for names of files that a save writes; temporary ones end in ".tmp-<process id>".
bool is_checkpoint_file(std::string_view name) {
  const bool begins_as_one = take(name, "manifest.json") ||
                             (take(name, "shard-") && take_digits(name) && take(name, "-of-") &&
                              take_digits(name) && take(name, ".safetensors"));
  return begins_as_one &&
         (name.empty() || (take(name, ".tmp-") && take_digits(name) && name.empty()));
}

std::vector<std::string> names_in(const std::string& folder, bool of_checkpoint) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (is_checkpoint_file(name) == of_checkpoint) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());  // the manifest before shards
  return names;
}

[[noreturn]] void not_replaced(const std::string& folder, const std::string& what) {
  throw Error(ExitCode::CannotWrite,
              "'" + folder + "' " + what + ": it is not replaced. Choose another folder.");
}

using nlohmann::json;

// Version 1 has one digest per piece and kind, a text in the place of the array, and no
// block_bytes. Version 3 has a base, so that older readers do not take it for a whole model.
constexpr int kVersion = 2;
constexpr int kVersionWithBase = 3;
constexpr int kOldestVersion = 1;
// 1,000 parameters over 1,000 ranks take 300 MB.
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;
constexpr int64_t kLargestElementBytes = 8;  // blocks hold whole elements
constexpr const char* kFormat = "sherd-checkpoint";
constexpr const char* kNoManifest = ": not a checkpoint's manifest";

// All fields of a manifest but its own digest.
constexpr std::array<const char*, 9> kFields = {"format",     "version", "block_bytes",
                                                "world_size", "note",    "base",
                                                "parameters", "buffers", "optimizer_steps"};

// The digest does not depend on the order of fields and on white space.
std::string digest_of_rest(json root) {
  root.erase("sha256");
  return files::sha256_of(root.dump());
}

// Returns why the manifest is damaged; empty if it is not. Older ones have no digest; an unknown
// field may be the digest under a damaged name.
std::string digest_fault_of(const json& root) {
  if (const auto digest = root.find("sha256"); digest != root.end()) {
    return *digest == digest_of_rest(root) ? ""
                                           : "its content does not match its digest: it was "
                                             "damaged or edited. Resume from an older checkpoint";
  }
  for (const auto& [name, value] : root.items()) {
    if (std::ranges::find(kFields, name) == kFields.end()) {
      return "it has no digest, and a field '" + name + "' that is not known";
    }
  }
  return "";
}

// Returns the parameter's fault; empty if pieces cover all elements in order and files lie in the
// folder itself.
std::string fault_of(const CheckpointParameter& parameter) {
  if (parameter.optimizer_steps.value_or(0) < 0) {
    return "optimizer_steps below 0";
  }
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) {
    if (size < 0 || (size > 0 && numel > INT64_MAX / size)) {
      return "an impossible shape";
    }
    numel *= size;
  }
  int64_t covered = 0;
  for (const CheckpointPiece& piece : parameter.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin) {
      return "pieces with a gap or an overlap at element " + std::to_string(covered);
    }
    if (piece.file.empty() || piece.file.find('/') != std::string::npos || piece.file == "..") {
      return "a piece in '" + piece.file + "', which is not a file of the checkpoint's folder";
    }
    if (piece.sha256.count("value") == 0) {
      return "a piece without a digest of its values";
    }
    covered = piece.end;
  }
  return covered == numel ? ""
                          : "pieces for " + std::to_string(covered) + " of " +
                                std::to_string(numel) + " elements";
}

using Tensors = std::map<std::string, CheckpointParameter>;

json tensors_to_json(const Tensors& tensors) {
  json all = json::object();
  for (const auto& [name, tensor] : tensors) {
    all[name] = {{"shape", tensor.shape}, {"pieces", tensor.pieces}};
    if (tensor.optimizer_steps) {
      all[name]["optimizer_steps"] = *tensor.optimizer_steps;
    }
  }
  return all;
}

// `what`: "parameter" or "buffer", for messages. `of_blocks`: digests are arrays.
Tensors tensors_from_json(const json& source, const std::string& what, bool of_blocks,
                          const std::function<void(const std::string&)>& refuse) {
  Tensors tensors;
  for (const auto& [name, item] : source.items()) {
    CheckpointParameter& tensor = tensors[name];
    item.at("shape").get_to(tensor.shape);
    json pieces = item.at("pieces");
    for (json& piece : pieces) {
      if (!of_blocks) {
        for (json& digest : piece.at("sha256")) {
          digest = json::array({digest});
        }
      }
      tensor.pieces.push_back(piece.get<CheckpointPiece>());
    }
    if (item.contains("optimizer_steps")) {
      tensor.optimizer_steps = item.at("optimizer_steps").get<int64_t>();
    }
    if (const std::string fault = fault_of(tensor); !fault.empty()) {
      refuse(what + " '" + name + "' has " + fault);
    }
  }
  return tensors;
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

std::string to_json(const CheckpointManifest& manifest) {
  json root = {{"format", kFormat},
               {"version", manifest.base ? kVersionWithBase : kVersion},
               {"block_bytes", manifest.block_bytes},
               {"world_size", manifest.world_size},
               {"optimizer_steps", manifest.optimizer_steps},
               {"note", manifest.note},
               {"parameters", tensors_to_json(manifest.parameters)}};
  if (manifest.buffers) {
    root["buffers"] = tensors_to_json(*manifest.buffers);
  }
  if (manifest.base) {
    root["base"] = *manifest.base;
  }
  root["sha256"] = digest_of_rest(root);
  return root.dump(1) + "\n";
}

CheckpointManifest manifest_from_json(const std::string& text, const std::string& path) {
  const auto refuse = [&](const std::string& what) -> CheckpointManifest {
    throw Error(ExitCode::BadData, path + kNoManifest + ": " + what);
  };
  try {
    const json root = files::parse_json(text, path + kNoManifest, files::RepeatedFields::Refuse);
    const json& version = root.at("version");
    const bool has_base = version == kVersionWithBase;
    if (root.at("format") != kFormat ||
        (version != kVersion && version != kOldestVersion && !has_base)) {
      return refuse("format and version are not '" + std::string(kFormat) + "' and " +
                    std::to_string(kOldestVersion) + " to " + std::to_string(kVersionWithBase) +
                    ". A newer version of Sherd may have written it");
    }
    if (const std::string fault = digest_fault_of(root); !fault.empty()) {
      return refuse(fault);
    }
    CheckpointManifest manifest;
    root.at("world_size").get_to(manifest.world_size);
    root.at("optimizer_steps").get_to(manifest.optimizer_steps);
    root.at("note").get_to(manifest.note);
    if (manifest.world_size < 1 || manifest.optimizer_steps < 0) {
      return refuse("world_size must be at least 1 and optimizer_steps at least 0");
    }
    const bool of_blocks = version != kOldestVersion;
    if (has_base) {
      manifest.base = root.at("base").get<std::string>();
    } else if (root.contains("base")) {
      return refuse("it has a base, which version " + version.dump() + " does not know");
    }
    manifest.block_bytes = of_blocks ? root.at("block_bytes").get<int64_t>() : 0;
    if (of_blocks &&
        (manifest.block_bytes <= 0 || manifest.block_bytes % kLargestElementBytes != 0)) {
      return refuse("block_bytes must be a multiple of " + std::to_string(kLargestElementBytes) +
                    " above 0");
    }
    manifest.parameters = tensors_from_json(root.at("parameters"), "parameter", of_blocks, refuse);
    if (root.contains("buffers")) {
      manifest.buffers = tensors_from_json(root.at("buffers"), "buffer", of_blocks, refuse);
    }
    return manifest;
  } catch (const json::exception& error) {
    return refuse(error.what());
  }
}

int64_t blocks_in(int64_t bytes, int64_t block_bytes) {
  return block_bytes == 0 ? 1 : (bytes + block_bytes - 1) / block_bytes;
}

}  // namespace detail

std::vector<std::string> names_beside_checkpoint(const std::string& folder) {
  return detail::names_in(folder, false);
}

bool has_checkpoint_files(const std::string& folder) {
  return !detail::names_in(folder, true).empty();
}

void remove_checkpoint(const std::string& folder) {
  std::error_code ignored;
  if (fs::is_symlink(folder, ignored)) {
    fs::remove(folder, ignored);
    return;
  }
  for (const std::string& name : detail::names_in(folder, true)) {
    fs::remove(fs::path(folder) / name, ignored);
  }
  fs::remove(folder, ignored);  // fails, as intended, if something is left
}

CheckpointManifest CheckpointManifest::read(const std::string& folder) {
  const std::string path = folder + "/" + detail::kManifestName;
  try {
    return detail::manifest_from_json(files::read_file(path, detail::kMaxManifestBytes), path);
  } catch (const Error& error) {
    if (error.code() != ExitCode::InputMissing) {
      throw;
    }
    throw Error(error.code(),
                "no checkpoint in '" + folder + "': " + error.what() +
                    ". A folder without a manifest is one whose writing did not end.");
  }
}

}  // namespace sherd
