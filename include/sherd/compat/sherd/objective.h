#pragma once
// This header is part of sherd/custom.h. The old name goes with 1.0.

#include "sherd/custom.h"
