#pragma once
// What callers of readers and writers must see to themselves.

#include <c10/util/StringUtil.h>

#include "sherd/error.h"

namespace sherd::detail {

/// Throws Error(Usage), whose message the parts of `text` make, unless `is_right`.
template <class... Text>
void check_use(bool is_right, const Text&... text) {
  if (!is_right) {
    throw Error(ExitCode::Usage, c10::str(text...));
  }
}

}  // namespace sherd::detail
