#include "llm/track/tensorboard.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/core.h>
#include <protozero/pbf_builder.hpp>
#include <unistd.h>

#include "files/folder.h"
#include "llm/track/crc32.h"
#include "llm/track/little_endian.h"
#include "llm/track/step_record.h"

namespace llm::track {

namespace {

namespace fs = std::filesystem;
using protozero::pbf_builder;
using protozero::pbf_tag_type;

// Fields of the messages, by number, as in TensorFlow's event.proto, summary.proto, tensor.proto
// and tensor_shape.proto.
enum class Event : pbf_tag_type {
  WallTime = 1,
  Step = 2,
  FileVersion = 3,
  Summary = 5,
  SessionLog = 7
};
enum class Session : pbf_tag_type { Status = 1 };
enum class Summary : pbf_tag_type { Value = 1 };
enum class Value : pbf_tag_type { Tag = 1, SimpleValue = 2, Tensor = 8, Metadata = 9 };
enum class Metadata : pbf_tag_type { PluginData = 1 };
enum class PluginData : pbf_tag_type { Name = 1 };
enum class Tensor : pbf_tag_type { Dtype = 1, Shape = 2, StringValue = 8 };
enum class Shape : pbf_tag_type { Dim = 2 };
enum class Dim : pbf_tag_type { Size = 1 };

// Values of their enumerations.
constexpr int kStart = 1;   // a session's status
constexpr int kString = 7;  // a tensor's dtype

constexpr std::string_view kPrefix = "events.out.tfevents.";

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

// An event of this time, which `fill` completes.
template <class Fill>
std::string event_of(double unix_seconds, const Fill& fill) {
  std::string bytes;
  pbf_builder<Event> event(bytes);
  event.add_double(Event::WallTime, unix_seconds);
  fill(event);
  return bytes;
}

std::string version_event(double unix_seconds) {
  return event_of(unix_seconds, [](pbf_builder<Event>& event) {
    event.add_string(Event::FileVersion, "brain.Event:2");
  });
}

// Of earlier files, readers let go of events of this step and later ones.
std::string start_event(double unix_seconds, std::int64_t first_step) {
  return event_of(unix_seconds, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::Step, first_step);
    pbf_builder<Session>(event, Event::SessionLog).add_enum(Session::Status, kStart);
  });
}

void add_text(pbf_builder<Value>& value, const std::string& text) {
  pbf_builder<Tensor> tensor(value, Value::Tensor);
  tensor.add_enum(Tensor::Dtype, kString);
  {
    pbf_builder<Shape> shape(tensor, Tensor::Shape);
    pbf_builder<Dim>(shape, Shape::Dim).add_int64(Dim::Size, 1);
  }
  tensor.add_bytes(Tensor::StringValue, text);
}

std::string text_event(double unix_seconds, std::int64_t step, const std::string& tag,
                       const std::string& text) {
  return event_of(unix_seconds, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::Step, step);
    pbf_builder<Summary> summary(event, Event::Summary);
    pbf_builder<Value> value(summary, Summary::Value);
    value.add_string(Value::Tag, tag);
    add_text(value, text);
    pbf_builder<Metadata> metadata(value, Value::Metadata);
    pbf_builder<PluginData>(metadata, Metadata::PluginData).add_string(PluginData::Name, "text");
  });
}

std::string scalars_event(const Point& point) {
  return event_of(point.unix_seconds, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::Step, point.step);
    pbf_builder<Summary> summary(event, Event::Summary);
    for (const auto& [name, number] : point.metrics) {
      pbf_builder<Value> value(summary, Summary::Value);
      value.add_string(Value::Tag, name);
      value.add_float(Value::SimpleValue, static_cast<float>(number));
    }
  });
}

std::string as_code(const std::string& text) {
  std::istringstream lines(text);
  std::string code;
  for (std::string line; std::getline(lines, line);) {
    code += "    " + line + "\n";
  }
  return code;
}

// Files are read in the order of their names, which begin with ten digits of a time.
std::int64_t seconds_after_all(const fs::path& folder, std::int64_t now) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with(kPrefix)) {
      const std::string digits = file.substr(kPrefix.size(), 10);
      now = std::max<std::int64_t>(now, std::strtoll(digits.c_str(), nullptr, 10) + 1);
    }
  }
  return now;
}

}  // namespace

std::string tf_record(std::string_view event) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  return record;
}

TensorBoard::TensorBoard(const config::Sink& sink, const TrackedRun& run)
    : folder_(sink.path.empty() ? (fs::path(run.config.train.output) / "tensorboard").string()
                                : sink.path),
      configuration_(as_code(config::to_toml(run.config))) {}

std::string TensorBoard::place() const {
  return "tensorboard --logdir " + folder_;
}

void TensorBoard::begin(std::int64_t steps_done, const EarlierPoints& /*earlier*/) {
  const double now = unix_seconds_now();
  sherd::files::make_folder(folder_);
  const std::int64_t seconds = seconds_after_all(folder_, static_cast<std::int64_t>(now));
  const fs::path path = fs::path(folder_) /
                        fmt::format("{}{:010}.{}.{}.0", kPrefix, seconds, host_name(), ::getpid());
  file_.emplace(path.string());
  const std::int64_t first_step = steps_done == 0 ? 0 : steps_done + 1;
  file_->append(tf_record(version_event(now)) + tf_record(start_event(now, first_step)) +
                tf_record(text_event(now, steps_done, "config", configuration_)));
}

void TensorBoard::log(std::span<const Point> points) {
  std::string records;
  for (const Point& point : points) {
    records += tf_record(scalars_event(point));
  }
  file_->append(records);
}

void TensorBoard::end(End /*how*/) {
  file_->sync();
}

}  // namespace llm::track
