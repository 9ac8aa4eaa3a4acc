#pragma once
// This header is part of sherd/state_dict.h. The old name goes with 1.0.

#include "sherd/state_dict.h"
