#pragma once
// This header is part of sherd/sharded_module.h. The old name goes with 1.0.

#include "sherd/sharded_module.h"
