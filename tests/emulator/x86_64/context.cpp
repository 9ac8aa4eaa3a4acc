#include "context.h"

#include <array>
#include <cstdint>
#include <cstring>

// void sherd_emulator_change(void** from, void* to): what calls keep lies on the stack that is
// left.
asm(R"(
.text
.globl sherd_emulator_change
.hidden sherd_emulator_change
.type sherd_emulator_change, @function
sherd_emulator_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sherd_emulator_change, . - sherd_emulator_change
)");
extern "C" void sherd_emulator_change(void** from, void* to);

namespace sherd::emulator {

// As if sherd_emulator_change() had been called at the entry's beginning: six registers, where to
// return to, and where the entry would return to.
void Context::prepare(char* stack, std::size_t bytes, void (*entry)()) {
  std::array<std::uintptr_t, 8> frame{};
  frame[6] = reinterpret_cast<std::uintptr_t>(entry);
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(stack) + bytes) / 16 * 16;
  stack_pointer_ = reinterpret_cast<void*>(end - sizeof frame);
  std::memcpy(stack_pointer_, frame.data(), sizeof frame);
}

void Context::change(Context& from, Context& to) {
  sherd_emulator_change(&from.stack_pointer_, to.stack_pointer_);
}

}  // namespace sherd::emulator
