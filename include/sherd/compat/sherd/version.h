#pragma once
// This header is part of sherd/error.h. The old name goes with 1.0.

#include "sherd/error.h"
