#pragma once
// What a back end leaves to the plain one.

#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace sherd::ops {

/// A function of a back end that LibTorch's operators computed instead of a kernel of its own,
/// which takes longer and more memory.
struct PlainUse {
  std::string function;  ///< as in the table: "norm"
  std::string reason;  ///< of the first call that did: "rows of 50257 values are no multiple of 8"
};

/// What this process has left to plain operators so far on `device`, each function once, in the
/// order of their first such calls; none on a CPU. Any thread.
[[nodiscard]] std::vector<PlainUse> plain_uses(c10::Device device);

/// For people: the back end of a device, and what it has left to the plain one so far: "cuda;
/// LibTorch's operators compute norm (rows of 13 values are no multiple of 8)".
[[nodiscard]] std::string kernels_text(c10::Device device);
/// The same of a back end's name and uses.
[[nodiscard]] std::string kernels_text(const std::string& backend,
                                       const std::vector<PlainUse>& uses);

}  // namespace sherd::ops
