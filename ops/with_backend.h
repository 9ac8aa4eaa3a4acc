#pragma once

#include "ops/backend.h"

namespace sherd::ops {

/// While one lives, operators called on its thread compute with this back end, which has to outlive
/// their backward. For tests of a back end whose device is not here.
class WithBackend {
 public:
  explicit WithBackend(const Backend& backend);
  WithBackend(const WithBackend&) = delete;
  WithBackend& operator=(const WithBackend&) = delete;
  ~WithBackend();

  /// Null where none lives on this thread.
  [[nodiscard]] static const Backend* current();

 private:
  const Backend* before_;
};

}  // namespace sherd::ops
