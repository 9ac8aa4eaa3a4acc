#pragma once

#include "ops/cpu/isa.h"

namespace sherd::ops {

/// Operators take a path of the processor while it lives.
class WithIsa {
 public:
  explicit WithIsa(cpu::Isa isa) : before_(cpu::isa()) { cpu::use_isa(isa); }
  ~WithIsa() { cpu::use_isa(before_); }
  WithIsa(const WithIsa&) = delete;
  WithIsa& operator=(const WithIsa&) = delete;

 private:
  cpu::Isa before_;
};

}  // namespace sherd::ops
