#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
