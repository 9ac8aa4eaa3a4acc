#pragma once
// This header is part of sherd/backend.h. The old name goes with 1.0.

#include "sherd/backend.h"
