#include "llm/track/wandb_records.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>
#include <protozero/pbf_builder.hpp>

#include "llm/track/tracked_run.h"

namespace llm::track {

namespace {

using protozero::pbf_builder;
using protozero::pbf_tag_type;

// Fields of the messages, by number.
enum class Record : pbf_tag_type { Number = 1, History = 2, Summary = 3, Run = 17, Exit = 18 };
enum class Run : pbf_tag_type {
  Id = 1,
  Entity = 2,
  Project = 3,
  Config = 4,
  Group = 6,
  JobType = 7,
  DisplayName = 8,
  Notes = 9,
  Tag = 10,
  Host = 13,
  StartingStep = 14,
  StartTime = 17
};
enum class Items : pbf_tag_type { Update = 1, Step = 2 };  // of a configuration, summary, history
enum class Item : pbf_tag_type { Key = 1, ValueJson = 16 };
enum class Step : pbf_tag_type { Number = 1 };
enum class Exit : pbf_tag_type { Code = 1, Runtime = 2 };
enum class Timestamp : pbf_tag_type { Seconds = 1, Nanoseconds = 2 };

void add_item(pbf_builder<Items>& items, const std::string& key, const std::string& value_json) {
  pbf_builder<Item> one(items, Items::Update);
  one.add_string(Item::Key, key);
  one.add_string(Item::ValueJson, value_json);
}

// As Python's json module writes it, which the server reads.
std::string number_json(double number) {
  if (std::isnan(number)) {
    return "NaN";
  }
  return std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                            : nlohmann::json(number).dump();
}

void add_text(pbf_builder<Run>& message, Run field, const std::string& text) {
  if (!text.empty()) {
    message.add_string(field, text);
  }
}

// "optim.lr" is {"optim": {"lr": …}}, as the server shows it.
nlohmann::ordered_json tree_of(const config::RunConfig& config) {
  nlohmann::ordered_json tree = nlohmann::ordered_json::object();
  for (const auto& [key, value] : settings_of(config)) {
    std::string path = "/" + key;
    std::replace(path.begin(), path.end(), '.', '/');
    tree[nlohmann::ordered_json::json_pointer(path)] = nlohmann::ordered_json::parse(value);
  }
  return tree;
}

void add_time(pbf_builder<Run>& run, double unix_seconds) {
  pbf_builder<Timestamp> time(run, Run::StartTime);
  const double whole = std::floor(unix_seconds);
  time.add_int64(Timestamp::Seconds, static_cast<std::int64_t>(whole));
  time.add_int32(Timestamp::Nanoseconds, static_cast<std::int32_t>((unix_seconds - whole) * 1e9));
}

// A record that holds one message, which `fill` writes.
template <class Field, class Fill>
std::string record_of(Record kind, const Fill& fill) {
  std::string bytes;
  pbf_builder<Record> record(bytes);
  {
    pbf_builder<Field> message(record, kind);
    fill(message);
  }
  return bytes;
}

}  // namespace

std::string numbered(std::int64_t number, std::string_view record) {
  std::string bytes;
  pbf_builder<Record>(bytes).add_int64(Record::Number, number);
  bytes += record;
  return bytes;
}

std::string run_record(const WandbRun& run, const config::RunConfig& config) {
  return record_of<Run>(Record::Run, [&](pbf_builder<Run>& message) {
    message.add_string(Run::Id, run.id);
    add_text(message, Run::Entity, run.entity);
    message.add_string(Run::Project, run.project);
    {
      pbf_builder<Items> items(message, Run::Config);
      const nlohmann::ordered_json tree = tree_of(config);
      for (const auto& [section, keys] : tree.items()) {
        add_item(items, section, keys.dump());
      }
    }
    add_text(message, Run::Group, run.group);
    add_text(message, Run::JobType, run.job_type);
    message.add_string(Run::DisplayName, run.display_name);
    add_text(message, Run::Notes, run.notes);
    for (const std::string& tag : run.tags) {
      message.add_string(Run::Tag, tag);
    }
    message.add_string(Run::Host, run.host);
    if (run.steps_done > 0) {
      message.add_int64(Run::StartingStep, run.steps_done + 1);
    }
    add_time(message, run.began_unix_seconds);
  });
}

std::string history_record(const Point& point, double runtime_seconds) {
  return record_of<Items>(Record::History, [&](pbf_builder<Items>& row) {
    for (const auto& [name, number] : point.metrics) {
      add_item(row, name, number_json(number));
    }
    add_item(row, "_step", std::to_string(point.step));
    add_item(row, "_timestamp", number_json(point.unix_seconds));
    add_item(row, "_runtime", number_json(runtime_seconds));
    pbf_builder<Step>(row, Items::Step).add_int64(Step::Number, point.step);
  });
}

std::string summary_record(const std::map<std::string, double>& newest) {
  return record_of<Items>(Record::Summary, [&](pbf_builder<Items>& summary) {
    for (const auto& [name, number] : newest) {
      add_item(summary, name, number_json(number));
    }
  });
}

std::string exit_record(End how, double runtime_seconds) {
  constexpr int kCodes[] = {0, 255, 1};  // by End
  return record_of<Exit>(Record::Exit, [&](pbf_builder<Exit>& message) {
    message.add_int32(Exit::Code, kCodes[static_cast<int>(how)]);
    message.add_int32(Exit::Runtime, static_cast<std::int32_t>(runtime_seconds));
  });
}

}  // namespace llm::track
