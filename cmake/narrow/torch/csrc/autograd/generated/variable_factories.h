#pragma once
// Factories of tensors: ATen/ops/NAME.h has them.
