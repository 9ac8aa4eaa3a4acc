#pragma once
// The way to write a model's shards from outside its step.

#include <optional>
#include <string>

#include "step/step.h"

namespace sherd::detail {

/// Values may be written between its construction, which waits until no rank reads this rank's
/// shards, and publish(): everything that initializes or loads a model holds one. Without publish()
/// they are torn; StateEntry::begin_writing() tells which. A model that was torn before is whole
/// again once all its parameters have been written, by one writer or by several in turn.
class ShardWriter {
 public:
  /// Throws Error(Usage), naming `operation`, inside a forward or a backward. Collective.
  ShardWriter(Step& step, const std::string& operation)
      : step_(step), was_torn_by_(step.torn_values()) {
    step_.require_between_steps(operation);
    step_.await_readers();
    step_.writing_begins(State::Values, operation);
  }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// The next gather sees what StateEntry::finish_writing() has ended. Collective.
  void publish() {
    step_.publish();
    step_.writing_ended(State::Values);
    if (was_torn_by_ && !step_.all_have_values()) {
      step_.writing_begins(State::Values, *was_torn_by_);
    }
  }

 private:
  Step& step_;
  std::optional<std::string> was_torn_by_;
};

}  // namespace sherd::detail
