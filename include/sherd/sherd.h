#pragma once
// All that a training program needs: shard a model, train it, save it and load it. Also brings the
// operators and modules of LibTorch that many programs use (narrow/training.h has the list).
// Headers for your own transport (backend.h), operators and losses (custom.h) are included where
// they are used.

#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "sherd/lora.h"
#include "sherd/memory.h"
#include "sherd/narrow/training.h"
#include "sherd/optim.h"
#include "sherd/options.h"
#include "sherd/safetensors.h"
#include "sherd/sharded_module.h"
#include "sherd/state_dict.h"
#include "sherd/unit.h"
#include "sherd/world.h"
