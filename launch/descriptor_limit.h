#pragma once
// How many files and connections this process may hold open.

namespace sherd::launch {

/// Descriptors that one rank needs at least: libraries, connections, the files of a checkpoint.
inline constexpr unsigned long kLeastDescriptors = 64;

/// Raises this process's limit on open descriptors as far as it may: to its hard limit, which its
/// children inherit. Throws `Error` (Unavailable) if even that is below `least`.
void raise_descriptor_limit(unsigned long least = kLeastDescriptors);

}  // namespace sherd::launch
