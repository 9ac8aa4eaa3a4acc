#pragma once

namespace sherd::detail {

/// Gives LibTorch shapes of operators that it has no kernel for on the meta device: those that
/// fake ranks have been seen to need. Once for the process.
void register_meta_kernels();

}  // namespace sherd::detail
