#include "llm/track/tensorboard.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/core.h>
#include <protozero/pbf_writer.hpp>
#include <unistd.h>

#include "files/folder.h"
#include "llm/track/crc32.h"
#include "llm/track/little_endian.h"
#include "llm/track/step_record.h"

namespace llm::track {

namespace {

namespace fs = std::filesystem;
using protozero::pbf_writer;

// Numbers of the fields of TensorFlow's event.proto, summary.proto, tensor.proto and
// tensor_shape.proto.
namespace event {
constexpr protozero::pbf_tag_type kWallTime = 1;
constexpr protozero::pbf_tag_type kStep = 2;
constexpr protozero::pbf_tag_type kFileVersion = 3;
constexpr protozero::pbf_tag_type kSummary = 5;
constexpr protozero::pbf_tag_type kSessionLog = 7;
}  // namespace event
namespace session {
constexpr protozero::pbf_tag_type kStatus = 1;
constexpr int kStart = 1;
}  // namespace session
namespace summary {
constexpr protozero::pbf_tag_type kValue = 1;
}
namespace value {
constexpr protozero::pbf_tag_type kTag = 1;
constexpr protozero::pbf_tag_type kSimpleValue = 2;
constexpr protozero::pbf_tag_type kTensor = 8;
constexpr protozero::pbf_tag_type kMetadata = 9;
}  // namespace value
namespace metadata {
constexpr protozero::pbf_tag_type kPluginData = 1;
constexpr protozero::pbf_tag_type kPluginName = 1;  // of the plugin data
}  // namespace metadata
namespace tensor {
constexpr protozero::pbf_tag_type kDtype = 1;
constexpr protozero::pbf_tag_type kShape = 2;
constexpr protozero::pbf_tag_type kStringValue = 8;
constexpr int kString = 7;  // a dtype
}  // namespace tensor
namespace shape {
constexpr protozero::pbf_tag_type kDim = 2;
constexpr protozero::pbf_tag_type kSize = 1;  // of a dim
}  // namespace shape

constexpr std::string_view kPrefix = "events.out.tfevents.";

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

std::string version_event(double unix_seconds) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(event::kWallTime, unix_seconds);
  event.add_string(event::kFileVersion, "brain.Event:2");
  return bytes;
}

// Of earlier files, readers let go of events of this step and later ones.
std::string start_event(double unix_seconds, std::int64_t first_step) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(event::kWallTime, unix_seconds);
  event.add_int64(event::kStep, first_step);
  pbf_writer log(event, event::kSessionLog);
  log.add_enum(session::kStatus, session::kStart);
  return bytes;
}

std::string text_event(double unix_seconds, std::int64_t step, const std::string& tag,
                       const std::string& text) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(event::kWallTime, unix_seconds);
  event.add_int64(event::kStep, step);
  pbf_writer all(event, event::kSummary);
  pbf_writer one(all, summary::kValue);
  one.add_string(value::kTag, tag);
  {
    pbf_writer tensor(one, value::kTensor);
    tensor.add_enum(tensor::kDtype, tensor::kString);
    {
      pbf_writer shape(tensor, tensor::kShape);
      pbf_writer dim(shape, shape::kDim);
      dim.add_int64(shape::kSize, 1);
    }
    tensor.add_bytes(tensor::kStringValue, text);
  }
  pbf_writer metadata(one, value::kMetadata);
  pbf_writer plugin(metadata, metadata::kPluginData);
  plugin.add_string(metadata::kPluginName, "text");
  return bytes;
}

std::string scalars_event(const Point& point) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(event::kWallTime, point.unix_seconds);
  event.add_int64(event::kStep, point.step);
  pbf_writer all(event, event::kSummary);
  for (const auto& [name, number] : point.metrics) {
    pbf_writer one(all, summary::kValue);
    one.add_string(value::kTag, name);
    one.add_float(value::kSimpleValue, static_cast<float>(number));
  }
  return bytes;
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
