// Products with a frozen weight in 8 bits and the same ones with the weight in bf16 or fp32, in
// turns: forward, and back to the input.
//
//   OMP_NUM_THREADS=1 build/release/bin/quantized_products [TOKENS INPUTS OUTPUTS]   (512 1024
//   4096)

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "benchmarks/compare_products.h"
#include "benchmarks/program.h"
#include "ops/q8_0.h"
#include "ops/shared/weight_products.h"

namespace sherd::benchmarks {
namespace {

void run(c10::ScalarType dtype, int64_t tokens, int64_t inputs, int64_t outputs) {
  const c10::InferenceMode no_gradients;
  const at::Tensor blocks = ops::q8_0::quantized(at::randn({outputs, inputs}));
  const at::Tensor weight = ops::q8_0::dequantized(blocks, dtype);
  const at::Tensor input = at::randn({tokens, inputs}).to(dtype);
  const at::Tensor gradient = at::randn({tokens, outputs}).to(dtype);
  const ops::Backend& backend = ops::backend_of(input);
  const double operations =
      2.0 * static_cast<double>(tokens * inputs) * static_cast<double>(outputs);
  std::printf("%s\n", c10::toString(dtype));
  compare("forward", operations,
          {"dense", [&] { static_cast<void>(ops::weight_product(backend, input, weight)); }},
          {"q8_0", [&] { static_cast<void>(ops::weight_product(backend, input, blocks)); }});
  compare("to the input", operations,
          {"dense", [&] { static_cast<void>(ops::input_gradient(backend, gradient, weight)); }},
          {"q8_0", [&] { static_cast<void>(ops::input_gradient(backend, gradient, blocks)); }});
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  long long sizes[] = {512, 1024, 4096};
  for (int i = 1; i < argc && i <= 3; ++i) {
    sizes[i - 1] = std::atoll(argv[i]);
  }
  const bool are_sizes = argc <= 4 && *std::min_element(std::begin(sizes), std::end(sizes)) > 0;
  if (!are_sizes || !sherd::ops::q8_0::fits(sizes[1])) {
    std::fprintf(stderr,
                 "usage: quantized_products [TOKENS INPUTS OUTPUTS]\n"
                 "INPUTS: a multiple of 32\n");
    return 64;
  }
  std::printf("%s, %lld tokens, %lld inputs, %lld outputs, %d thread(s)\n",
              sherd::benchmarks::processor().c_str(), sizes[0], sizes[1], sizes[2],
              at::get_num_threads());
  sherd::benchmarks::run(at::kBFloat16, sizes[0], sizes[1], sizes[2]);
  sherd::benchmarks::run(at::kFloat, sizes[0], sizes[1], sizes[2]);
  return 0;
}
