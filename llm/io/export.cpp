#include "llm/io/export.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iterator>
#include <system_error>

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/output.h"
#include "llm/io/hf_config.h"
#include "llm/model/adapter_names.h"
#include "sherd/error.h"

namespace llm::io {
namespace {

constexpr const char* kCopied[] = {"generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "tokenizer.model",
                                   "vocab.json",
                                   "merges.txt",
                                   "chat_template.jinja",
                                   "chat_template.json"};

// How the names of files begin that a licence asks to pass on, in upper case.
constexpr const char* kOfLicence[] = {"LICENSE",       "LICENCE", "COPYING",    "MODEL_LICENSE",
                                      "MODEL_LICENCE", "NOTICE",  "USE_POLICY", "README"};

// Folders whose files are copied, in upper case: of licences, and of chat templates for tools or
// retrieval, as transformers keeps them.
constexpr const char* kCopiedFolders[] = {"LICENSES", "LICENCES", "ADDITIONAL_CHAT_TEMPLATES"};

std::string in_upper_case(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

bool is_of_licence(const std::string& name) {
  const std::string upper = in_upper_case(name);
  return std::any_of(std::begin(kOfLicence), std::end(kOfLicence),
                     [&](const char* begin) { return upper.starts_with(begin); });
}

bool is_copied_folder(const std::string& name) {
  const std::string upper = in_upper_case(name);
  return std::find(std::begin(kCopiedFolders), std::end(kCopiedFolders), upper) !=
         std::end(kCopiedFolders);
}

// The regular files of a folder itself that are wanted, in order, by their names. A link counts by
// what it leads to.
std::vector<std::string> files_in(const std::filesystem::path& folder,
                                  const std::function<bool(const std::string& name)>& wanted) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(ignored) && wanted(name)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Those in folders that are copied, as "LICENSES/MIT.txt".
std::vector<std::string> files_of_folders(const std::string& source_folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder, ignored)) {
    const std::string folder = entry.path().filename().string();
    if (is_copied_folder(folder) && entry.is_directory(ignored)) {
      for (const std::string& name : files_in(entry.path(), [](const auto&) { return true; })) {
        names.push_back(folder);
        names.back().append("/").append(name);
      }
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The largest file of a tokenizer in use has about 35 MB.
constexpr std::uint64_t kMaxCopiedBytes = std::uint64_t{128} << 20;

}  // namespace

std::vector<sherd::SafetensorsSpec> export_specs(const model::CausalLmImpl& model,
                                                 c10::ScalarType dtype) {
  std::vector<sherd::SafetensorsSpec> specs;
  for (const auto& parameter : model.named_parameters()) {
    if (model::is_of_adapter(parameter.key())) {
      continue;
    }
    specs.push_back({parameter.key(), dtype, parameter.value().sizes().vec()});
  }
  return specs;
}

std::vector<std::string> copied_files(const std::string& source_folder) {
  sherd::files::check_link(source_folder, source_folder + "/config.json");
  std::vector<std::string> names;
  for (const char* name : kCopied) {
    if (std::filesystem::exists(source_folder + "/" + name)) {
      names.emplace_back(name);
    }
  }
  for (const auto& more :
       {files_in(source_folder, is_of_licence), files_of_folders(source_folder)}) {
    names.insert(names.end(), more.begin(), more.end());
  }
  for (const std::string& name : names) {
    sherd::files::check_link(source_folder, source_folder + "/" + name);
  }
  return names;
}

std::int64_t copied_bytes(const std::string& source_folder) {
  std::int64_t bytes = 0;
  for (const std::string& name : copied_files(source_folder)) {
    const std::string path = source_folder + "/" + name;
    const sherd::files::InputFile file = sherd::files::open_input(path);
    if (file.size_bytes > kMaxCopiedBytes) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         path + ": has " + std::to_string(file.size_bytes) +
                             " bytes, more than the " + std::to_string(kMaxCopiedBytes) +
                             " of a file that is copied into an export. Take it out of the "
                             "model's folder.");
    }
    bytes += static_cast<std::int64_t>(file.size_bytes);
  }
  return bytes;
}

namespace {

using nlohmann::ordered_json;

// The stop token's id as the one that ends a text; of a list, as the first.
void set_stop_id(ordered_json& config, const ExportedChat& chat) {
  ordered_json& field = config["eos_token_id"];
  if (!field.is_array()) {
    field = chat.stop_id;
    return;
  }
  ordered_json ids = ordered_json::array({chat.stop_id});
  for (const ordered_json& id : field) {
    if (id != chat.stop_id) {
      ids.push_back(id);
    }
  }
  field = std::move(ids);
}

void set_stop_token(ordered_json& config, const ExportedChat& chat) {
  ordered_json& field = config["eos_token"];
  if (field.is_object()) {
    field["content"] = chat.stop_token;
  } else {
    field = chat.stop_token;
  }
}

// Names the stop token and the chat template in the copied files of the tokenizer.
void write_chat(const std::string& folder, const ExportedChat& chat) {
  const auto change = [&](const std::string& name, bool is_needed, const auto& edit) {
    const std::string path = folder + "/" + name;
    const bool is_there = std::filesystem::exists(path);
    if (!is_there && !is_needed) {
      return;
    }
    auto config = is_there ? ordered_json::parse(sherd::files::read_file(path, kMaxCopiedBytes))
                           : ordered_json::object();
    edit(config);
    sherd::files::write_file(path, config.dump(2) + "\n");
  };
  if (!chat.stop_token.empty()) {
    change("generation_config.json", false, [&](ordered_json& c) { set_stop_id(c, chat); });
    change("tokenizer_config.json", true, [&](ordered_json& c) { set_stop_token(c, chat); });
    change("special_tokens_map.json", false, [&](ordered_json& c) { set_stop_token(c, chat); });
  }
  if (!chat.chat_template.empty()) {
    change("tokenizer_config.json", false, [](ordered_json& c) { c.erase("chat_template"); });
    std::filesystem::remove(folder + "/chat_template.json");
    sherd::files::write_file(folder + "/chat_template.jinja", chat.chat_template);
  }
}

}  // namespace

namespace {

void copy_file(const std::string& source_folder, const std::string& name,
               const std::string& out_folder) {
  if (const std::size_t slash = name.find('/'); slash != std::string::npos) {
    sherd::files::make_folder(out_folder + "/" + name.substr(0, slash));
  }
  sherd::files::write_file(out_folder + "/" + name,
                           sherd::files::read_file(source_folder + "/" + name, kMaxCopiedBytes));
}

}  // namespace

void copy_own_tokenizer(const std::string& source_folder, const std::string& out_folder) {
  for (const std::string& name : copied_files(source_folder)) {
    if (!is_of_licence(name)) {
      copy_file(source_folder, name, out_folder);
    }
  }
}

void copy_tokenizer(const std::string& source_folder, const std::string& out_folder,
                    const std::optional<ExportedChat>& chat) {
  for (const std::string& name : copied_files(source_folder)) {
    copy_file(source_folder, name, out_folder);
  }
  if (chat) {
    write_chat(out_folder, *chat);
  }
}

void copy_config_and_tokenizer(const std::string& source_folder, const std::string& out_folder,
                               c10::ScalarType dtype, const std::optional<ExportedChat>& chat) {
  auto config = read_config_json(source_folder + "/config.json");
  copy_tokenizer(source_folder, out_folder, chat);
  config.erase("auto_map");  // the code that it names is not copied
  const bool new_spelling = config.contains("dtype");
  if (new_spelling) {
    config["dtype"] = name_of_dtype(dtype);
  }
  if (config.contains("torch_dtype") || !new_spelling) {
    config["torch_dtype"] = name_of_dtype(dtype);
  }
  if (chat && !chat->stop_token.empty()) {
    set_stop_id(config, *chat);
  }
  sherd::files::write_file(out_folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace llm::io
