#include "context.h"

namespace sherd::emulator {

void Context::prepare(char* stack, std::size_t bytes, void (*entry)()) {
  ::getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  ::makecontext(&context_, entry, 0);
}

void Context::change(Context& from, Context& to) {
  ::swapcontext(&from.context_, &to.context_);
}

}  // namespace sherd::emulator
