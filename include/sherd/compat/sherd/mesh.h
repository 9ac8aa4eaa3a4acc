#pragma once
// This header is part of sherd/world.h. The old name goes with 1.0.

#include "sherd/world.h"
