#pragma once
// The operators that its inline functions call, and itself.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include_next <torch/csrc/distributed/c10d/Utils.hpp>
