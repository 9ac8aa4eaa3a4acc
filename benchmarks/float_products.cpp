// The three products of a linear map in fp32: LibTorch's (MKL's) beside oneDNN's, in turns.
//
//   OMP_NUM_THREADS=2 build/release/bin/float_products [ROWS INPUTS OUTPUTS]   (256 576 1536)

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "benchmarks/compare_products.h"
#include "benchmarks/program.h"
#include "ops/cpu/onednn_products.h"

namespace sherd::benchmarks {
namespace {

void compare_all(const char* what, double operations, at::Tensor out, const at::Tensor& a,
                 const at::Tensor& b) {
  compare(what, operations, {"LibTorch", [&] { at::mm_out(out, a, b); }},
          {"oneDNN", [&] { ops::cpu::onednn_mm(out, a, b); }});
}

void run(int64_t rows, int64_t inputs, int64_t outputs) {
  const c10::InferenceMode no_gradients;
  const at::Tensor input = at::randn({rows, inputs}), weight = at::randn({outputs, inputs});
  const at::Tensor output = at::randn({rows, outputs});
  const double operations = 2.0 * static_cast<double>(rows * inputs) * static_cast<double>(outputs);
  std::printf("%s, %lld rows, %lld inputs, %lld outputs, %d thread(s)\n", processor().c_str(),
              static_cast<long long>(rows), static_cast<long long>(inputs),
              static_cast<long long>(outputs), at::get_num_threads());
  compare_all("forward", operations, at::empty_like(output), input, weight.t());
  compare_all("towards the input", operations, at::empty_like(input), output, weight);
  compare_all("towards the weight", operations, at::empty_like(weight), output.t(), input);
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  long long sizes[] = {256, 576, 1536};
  for (int i = 1; i < argc && i <= 3; ++i) {
    sizes[i - 1] = std::atoll(argv[i]);
  }
  if (argc > 4 || *std::min_element(std::begin(sizes), std::end(sizes)) < 1) {
    std::fprintf(stderr, "usage: float_products [ROWS INPUTS OUTPUTS]\n");
    return 64;
  }
  if (!sherd::ops::cpu::onednn_multiplies_floats(sherd::ops::cpu::isa())) {
    std::fprintf(stderr, "oneDNN's products of fp32 need AVX-512, which this path has not\n");
    return 69;
  }
  sherd::benchmarks::run(sizes[0], sizes[1], sizes[2]);
  return 0;
}
