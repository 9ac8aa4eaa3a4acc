#pragma once
// This header is part of sherd/communicator.h. The old name goes with 1.0.

#include "sherd/communicator.h"
