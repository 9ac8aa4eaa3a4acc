#pragma once
// What most tests that see LibTorch include: all of its modules and optimizers' headers, and
// GoogleTest's; parsed once.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "files/compiled_json.h"
