#pragma once
// This header is part of sherd/unit.h. The old name goes with 1.0.

#include "sherd/unit.h"
