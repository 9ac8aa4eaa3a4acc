#pragma once
// Runs in TensorBoard.

#include <optional>
#include <string>
#include <string_view>

#include "files/appended_file.h"
#include "llm/config/run_config.h"
#include "llm/track/tracked_run.h"
#include "llm/track/tracker.h"

namespace llm::track {

/// `event` as a record of a TFRecord file: its length, the masked CRC-32C of that, itself, and its
/// own.
[[nodiscard]] std::string tf_record(std::string_view event);

/// Writes event files, as TensorFlow's and PyTorch's summary writers do: one for each session of a
/// run, of which a later one takes back the steps that it makes again. The configuration is a text.
class TensorBoard final : public Tracker {
 public:
  /// In the folder that `sink` names, else tensorboard in the run's output.
  TensorBoard(const config::Sink& sink, const TrackedRun& run);

  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] std::string place() const override;
  void begin(std::int64_t steps_done, const EarlierPoints& earlier) override;
  void log(std::span<const Point> points) override;
  void end(End how) override;

 private:
  std::string folder_;
  std::string configuration_;  // as Markdown
  std::optional<sherd::files::AppendedFile> file_;
};

}  // namespace llm::track
