#pragma once
// The way to a model's shards from outside its step: when they may be touched, and when nobody
// reads them.

#include <string>

namespace sherd::detail {

class Runtime;

/// Throws Error(Usage), naming `operation`, inside a forward or a backward of the model. Gives up a
/// backward that an exception has ended. Not collective.
void require_between_steps(Runtime& runtime, const std::string& operation);

/// Frees what is gathered and waits until no rank reads this rank's shards, so that they may be
/// written; publish() must follow. Collective.
void await_readers(Runtime& runtime);

}  // namespace sherd::detail
