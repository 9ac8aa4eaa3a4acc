#pragma once
// What NCCL says of a failure, and what to try.

#include <string>

namespace sherd::detail {

/// NCCL's own last words in what a process group threw, on one line and without places in sources;
/// empty where NCCL said nothing.
[[nodiscard]] std::string nccl_reason(const std::string& thrown);

/// A sentence: which network interfaces NCCL was told to use.
[[nodiscard]] std::string nccl_interfaces();

/// A sentence: how NCCL tells more.
inline constexpr const char* kNcclTellsMore = "NCCL_DEBUG=INFO has NCCL say what it tries.";

}  // namespace sherd::detail
