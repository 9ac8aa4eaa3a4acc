#include "llm/track/wandb_records.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>

#include "llm/track/tracked_run.h"

namespace llm::track {

namespace {

using protozero::pbf_tag_type;
using protozero::pbf_writer;

// Numbers of the fields.
namespace record {
constexpr pbf_tag_type kNumber = 1;
constexpr pbf_tag_type kHistory = 2;
constexpr pbf_tag_type kSummary = 3;
constexpr pbf_tag_type kRun = 17;
constexpr pbf_tag_type kExit = 18;
}  // namespace record
namespace run_field {
constexpr pbf_tag_type kId = 1;
constexpr pbf_tag_type kEntity = 2;
constexpr pbf_tag_type kProject = 3;
constexpr pbf_tag_type kConfig = 4;
constexpr pbf_tag_type kGroup = 6;
constexpr pbf_tag_type kJobType = 7;
constexpr pbf_tag_type kDisplayName = 8;
constexpr pbf_tag_type kNotes = 9;
constexpr pbf_tag_type kTag = 10;
constexpr pbf_tag_type kHost = 13;
constexpr pbf_tag_type kStartingStep = 14;
constexpr pbf_tag_type kStartTime = 17;
}  // namespace run_field
namespace item {
constexpr pbf_tag_type kUpdate = 1;  // in a configuration, a summary and a history
constexpr pbf_tag_type kKey = 1;
constexpr pbf_tag_type kValueJson = 16;
}  // namespace item
namespace history {
constexpr pbf_tag_type kStep = 2;
constexpr pbf_tag_type kStepNumber = 1;
}  // namespace history
namespace exit_field {
constexpr pbf_tag_type kCode = 1;
constexpr pbf_tag_type kRuntime = 2;
}  // namespace exit_field
namespace timestamp {
constexpr pbf_tag_type kSeconds = 1;
constexpr pbf_tag_type kNanoseconds = 2;
}  // namespace timestamp

void add_item(pbf_writer& items, const std::string& key, const std::string& value_json) {
  pbf_writer one(items, item::kUpdate);
  one.add_string(item::kKey, key);
  one.add_string(item::kValueJson, value_json);
}

// As Python's json module writes it, which the server reads.
std::string number_json(double number) {
  if (std::isnan(number)) {
    return "NaN";
  }
  return std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                            : nlohmann::json(number).dump();
}

void add_text(pbf_writer& message, pbf_tag_type tag, const std::string& text) {
  if (!text.empty()) {
    message.add_string(tag, text);
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

void add_time(pbf_writer& run, double unix_seconds) {
  pbf_writer time(run, run_field::kStartTime);
  const double whole = std::floor(unix_seconds);
  time.add_int64(timestamp::kSeconds, static_cast<std::int64_t>(whole));
  time.add_int32(timestamp::kNanoseconds, static_cast<std::int32_t>((unix_seconds - whole) * 1e9));
}

}  // namespace

std::string numbered(std::int64_t number, std::string_view record) {
  std::string bytes;
  pbf_writer(bytes).add_int64(record::kNumber, number);
  bytes += record;
  return bytes;
}

std::string run_record(const WandbRun& run, const config::RunConfig& config) {
  std::string bytes;
  pbf_writer whole(bytes);
  pbf_writer message(whole, record::kRun);
  message.add_string(run_field::kId, run.id);
  add_text(message, run_field::kEntity, run.entity);
  message.add_string(run_field::kProject, run.project);
  {
    pbf_writer items(message, run_field::kConfig);
    const nlohmann::ordered_json tree = tree_of(config);
    for (const auto& [section, keys] : tree.items()) {
      add_item(items, section, keys.dump());
    }
  }
  add_text(message, run_field::kGroup, run.group);
  add_text(message, run_field::kJobType, run.job_type);
  message.add_string(run_field::kDisplayName, run.display_name);
  add_text(message, run_field::kNotes, run.notes);
  for (const std::string& tag : run.tags) {
    message.add_string(run_field::kTag, tag);
  }
  message.add_string(run_field::kHost, run.host);
  if (run.steps_done > 0) {
    message.add_int64(run_field::kStartingStep, run.steps_done + 1);
  }
  add_time(message, run.began_unix_seconds);
  return bytes;
}

std::string history_record(const Point& point, double runtime_seconds) {
  std::string bytes;
  pbf_writer whole(bytes);
  pbf_writer message(whole, record::kHistory);
  for (const auto& [name, number] : point.metrics) {
    add_item(message, name, number_json(number));
  }
  add_item(message, "_step", std::to_string(point.step));
  add_item(message, "_timestamp", number_json(point.unix_seconds));
  add_item(message, "_runtime", number_json(runtime_seconds));
  pbf_writer step(message, history::kStep);
  step.add_int64(history::kStepNumber, point.step);
  return bytes;
}

std::string summary_record(const std::map<std::string, double>& newest) {
  std::string bytes;
  pbf_writer whole(bytes);
  pbf_writer message(whole, record::kSummary);
  for (const auto& [name, number] : newest) {
    add_item(message, name, number_json(number));
  }
  return bytes;
}

std::string exit_record(End how, double runtime_seconds) {
  constexpr int kCodes[] = {0, 255, 1};  // by End
  std::string bytes;
  pbf_writer whole(bytes);
  pbf_writer message(whole, record::kExit);
  message.add_int32(exit_field::kCode, kCodes[static_cast<int>(how)]);
  message.add_int32(exit_field::kRuntime, static_cast<std::int32_t>(runtime_seconds));
  return bytes;
}

}  // namespace llm::track
