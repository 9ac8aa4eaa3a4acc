#pragma once
// The way to write a model's shards from outside its step.

#include <string>

#include "step/step.h"

namespace sherd::detail {

/// Values may be written between its construction, which waits until no rank reads this rank's
/// shards, and publish(): everything that initializes or loads a model holds one. Without publish()
/// they are torn. `written`: Values, or TrainedValues where frozen parameters keep theirs.
class ShardWriter {
 public:
  /// Throws Error(Usage), naming `operation`, inside a forward or a backward. Collective.
  ShardWriter(Step& step, const std::string& operation, State written = State::Values)
      : step_(step), written_(written) {
    step_.require_between_steps(operation);
    step_.await_readers();
    step_.writing_begins(written_, operation);
  }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// All parameters have their values, which the next gather sees. Collective.
  void publish() {
    step_.publish_values();
    step_.writing_ended(written_);
  }

 private:
  Step& step_;
  State written_;
};

}  // namespace sherd::detail
