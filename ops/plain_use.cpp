#include "ops/plain_use.h"

#include <ATen/ops/empty.h>

#include "ops/backend.h"

namespace sherd::ops {

namespace {

const Backend& backend_on(c10::Device device) {
  return backend_of(at::empty({0}, device));
}

}  // namespace

std::vector<PlainUse> plain_uses(c10::Device device) {
  auto* const of = backend_on(device).plain_uses;
  return of == nullptr ? std::vector<PlainUse>() : of();
}

std::string kernels_text(c10::Device device) {
  return kernels_text(backend_on(device).name, plain_uses(device));
}

std::string kernels_text(const std::string& backend, const std::vector<PlainUse>& uses) {
  std::string text = backend;
  const char* between = "; LibTorch's operators compute ";
  for (const PlainUse& use : uses) {
    text += between + use.function + " (" + use.reason + ")";
    between = ", ";
  }
  return text;
}

}  // namespace sherd::ops
