#pragma once
// This header is part of sherd/optim.h. The old name goes with 1.0.

#include "sherd/optim.h"
