#pragma once
// The failure of an output for want of room.

#include "sherd/error.h"

namespace sherd {

/// A full disk or quota: the output had no room, and a later try may succeed. The code is
/// CannotWrite or StorageIo. PyTorch: none.
class NoRoom : public Error {
 public:
  using Error::Error;
};

}  // namespace sherd
