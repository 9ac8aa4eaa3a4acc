#pragma once
// The error of an output without room on its disk.

#include "sherd/error.h"

namespace sherd {

/// A full disk or quota: the output did not fit, and a later try may succeed. The code is
/// CannotWrite or StorageIo. PyTorch: none.
class NoRoom : public Error {
 public:
  using Error::Error;
};

}  // namespace sherd
