#pragma once
// How fast this machine could do a step, if matrix products were all that it did.

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace llm::bench {

/// Products of one shape in a forward pass: [rows, inputs] × [inputs, outputs], `batch` at once,
/// and that `count` times. Backward has two more of each, with other operands; of a frozen weight
/// one.
struct MatmulShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t count = 1;
  std::int64_t batch = 1;
  bool is_frozen = false;  ///< not with a batch
};

/// The measured time of all of them, forward and backward, on this thread's threads: each shape and
/// direction in the fastest form that the processor has, whichever the operators use. Forms: fp32,
/// and where the path of the processor multiplies it `dtype` (that of the step; fp32 has no other);
/// each as is and transposed, and logits by blocks of rows. Products alone: not the conversion
/// between dtypes. Weights are cycled through memory, so that none stays in a cache between two
/// uses.
[[nodiscard]] double matmul_seconds(const std::vector<MatmulShape>& shapes, c10::ScalarType dtype);

/// Operations of the same products, a multiplication and an addition counting as two.
[[nodiscard]] double matmul_operations(const std::vector<MatmulShape>& shapes);

}  // namespace llm::bench
