#include "ops/with_backend.h"

namespace sherd::ops {
namespace {

thread_local const Backend* chosen = nullptr;

}  // namespace

WithBackend::WithBackend(const Backend& backend) : before_(chosen) {
  chosen = &backend;
}
WithBackend::~WithBackend() {
  chosen = before_;
}
const Backend* WithBackend::current() {
  return chosen;
}

}  // namespace sherd::ops
