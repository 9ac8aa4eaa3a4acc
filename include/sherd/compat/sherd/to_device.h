#pragma once
// This header is part of sherd/memory.h. The old name goes with 1.0.

#include "sherd/memory.h"
