// A library such as libsherd_ops_cuda.so is, without a GPU.

#include "ops/backend.h"

extern "C" void sherd_ops_cuda(sherd::ops::Backend& backend) {
  backend.name = "of a library";
}
