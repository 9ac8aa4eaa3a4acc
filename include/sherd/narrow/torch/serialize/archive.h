#pragma GCC system_header
#ifdef SHERD_NARROW_TORCH
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize
#else
#include_next <torch/serialize/archive.h>
#endif
