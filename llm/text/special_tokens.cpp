#include "llm/text/special_tokens.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

using nlohmann::json;
using sherd::files::RepeatedFields;
using Ids = std::vector<std::int32_t>;

struct ConfigFile {
  std::string path;
  json content = json::object();  // an absent file says nothing

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw sherd::Error(sherd::ExitCode::BadData, path + ": /" + field + ": " + why);
  }
};

ConfigFile read_special_file(const std::filesystem::path& path,
                             RepeatedFields repeated = RepeatedFields::LastCounts) {
  ConfigFile file{path.string()};
  if (std::filesystem::exists(path)) {
    file.content = sherd::files::read_json_object(file.path, repeated);
  }
  return file;
}

// A field that names a token: a string, an object with `content`, or null.
std::optional<std::string> token_of(const ConfigFile& file, const std::string& field) {
  const json value = file.content.value(field, json());
  if (value.is_null()) {
    return std::nullopt;
  }
  const json name = value.is_object() ? value.value("content", json()) : value;
  if (!name.is_string()) {
    file.refuse(field, "should be a token (a string, or an object with content), is " +
                           std::string(value.type_name()));
  }
  return name.get<std::string>();
}

// A field that holds an id, a list of ids, or null.
Ids ids_of(const ConfigFile& file, const std::string& field) {
  const json value = file.content.value(field, json());
  if (value.is_null()) {
    return {};
  }
  Ids ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      file.refuse(field, "should be an id or a list of ids, is " + value.dump());
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

}  // namespace

SpecialIds read_special_ids(
    const std::filesystem::path& folder,
    const std::function<std::optional<std::int32_t>(const std::string&)>& id_of) {
  const ConfigFile tokenizer_config = read_special_file(folder / "tokenizer_config.json");
  const ConfigFile tokens_map = read_special_file(folder / "special_tokens_map.json");
  const ConfigFile generation_config = read_special_file(folder / "generation_config.json");
  const ConfigFile config = read_special_file(folder / "config.json", RepeatedFields::Refuse);

  const auto named_token = [&](const std::string& field) -> std::optional<std::int32_t> {
    for (const ConfigFile* file : {&tokenizer_config, &tokens_map}) {
      if (const auto token = token_of(*file, field)) {
        const auto id = id_of(*token);
        if (!id) {
          file->refuse(field, "\"" + *token + "\" is not in the vocabulary of tokenizer.json");
        }
        return id;
      }
    }
    return std::nullopt;
  };
  const auto first_ids = [&](const std::string& field) {
    const Ids ids = ids_of(generation_config, field);
    return ids.empty() ? ids_of(config, field) : ids;
  };

  SpecialIds special;
  special.stop = first_ids("eos_token_id");
  special.end = named_token("eos_token");
  if (!special.end && !special.stop.empty()) {
    special.end = special.stop.front();
  }
  if (special.end) {
    special.stop.push_back(*special.end);
  }
  std::sort(special.stop.begin(), special.stop.end());
  special.stop.erase(std::unique(special.stop.begin(), special.stop.end()), special.stop.end());
  return special;
}

}  // namespace llm::text
