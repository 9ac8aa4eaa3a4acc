#include "llm/config/fields.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace llm::config {
namespace {

std::string below(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::string with_index(const std::string& key, std::size_t index) {
  return fmt::format("{}[{}]", key, index);
}

void collect(const Table& table, const std::string& prefix, std::vector<Leaf>& all) {
  for (const Field& field : table.fields) {
    const std::string key = below(prefix, field.name);
    if (field.value() != nullptr) {
      all.push_back({key, field});
    } else if (const Table* nested = field.table()) {
      collect(*nested, key, all);
    } else if (const TableList* list = field.list()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        collect(list->item(i), with_index(key, i), all);
      }
    }
  }
}

/// "train[1]" as a name and an index.
struct Step {
  std::string name;
  std::optional<std::size_t> index;
};

std::optional<Step> step_of(std::string_view text) {
  const std::size_t bracket = std::min(text.find('['), text.size());
  Step step{std::string(text.substr(0, bracket)), std::nullopt};
  if (bracket == text.size()) {
    return step;
  }
  const auto index = text.ends_with(']')
                         ? integer_of(text.substr(bracket + 1, text.size() - bracket - 2))
                         : std::nullopt;
  if (!index || *index < 0) {
    return std::nullopt;
  }
  step.index = static_cast<std::size_t>(*index);
  return step;
}

const Field* field_named(const Table& table, const std::string& name) {
  const auto found = std::find_if(table.fields.begin(), table.fields.end(), [&](const Field& f) {
    const bool other_name =
        f.is_not_yet() && std::any_of(f.old_names.begin(), f.old_names.end(),
                                      [&](const OldName& old) { return old.key == name; });
    return f.name == name || other_name;
  });
  return found == table.fields.end() ? nullptr : &*found;
}

/// The table of `list`'s item, which is made if it is the next one.
std::optional<Table> item_of(const TableList& list, std::size_t index) {
  if (index > list.size()) {
    return std::nullopt;
  }
  if (index == list.size()) {
    list.resize(index + 1);
  }
  return list.item(index);
}

Found find_in(const Table& table, const std::string& prefix, std::string_view rest) {
  const std::size_t dot = std::min(rest.find('.'), rest.size());
  const auto step = step_of(rest.substr(0, dot));
  const Field* field = step ? field_named(table, step->name) : nullptr;
  const bool last = dot == rest.size();
  if (field == nullptr) {
    return {};
  }
  const std::string key = below(prefix, field->name);
  const TableList* list = field->list();
  if (field->is_not_yet() || (last && !step->index)) {
    return {key, *field};
  }
  std::optional<Table> inner;
  if (list != nullptr && step->index) {
    inner = item_of(*list, *step->index);
  } else if (field->table() != nullptr && !step->index) {
    inner = *field->table();
  }
  if (!inner || last) {
    return {};
  }
  const std::string inner_key = step->index ? with_index(key, *step->index) : key;
  return find_in(*inner, inner_key, rest.substr(dot + 1));
}

}  // namespace

std::vector<Leaf> leaves(RunConfig& config) {
  std::vector<Leaf> all;
  collect(schema(config), "", all);
  return all;
}

Found find(RunConfig& config, std::string_view key) {
  return find_in(schema(config), "", key);
}

RunConfig with_items() {
  RunConfig config;
  for (const Field& section : schema(config).fields) {
    for (const Field& field :
         section.table() != nullptr ? section.table()->fields : std::vector<Field>()) {
      if (const TableList* list = field.list()) {
        list->resize(1);
      }
    }
  }
  return config;
}

std::vector<Renamed> all_renamed() {
  RunConfig config = with_items();
  std::vector<Renamed> all;
  for (const Leaf& leaf : leaves(config)) {
    for (const OldName& old : leaf.field.old_names) {
      all.push_back({leaf, old});
    }
  }
  return all;
}

std::vector<Renamed> renamed(std::string_view key) {
  std::vector<Renamed> all = all_renamed();
  std::erase_if(all, [&](const Renamed& field) { return field.old.key != key; });
  return all;
}

}  // namespace llm::config
