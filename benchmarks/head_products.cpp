// The head's two products beside at::mm on the same operands, in turns, in bf16.
//
//   OMP_NUM_THREADS=1 build/release/bin/head_products [ROWS WIDTH VOCABULARY]   (511 1024 250880)

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "benchmarks/compare_products.h"
#include "benchmarks/program.h"
#include "ops/cpu/products.h"

namespace sherd::benchmarks {
namespace {

void run(int64_t rows, int64_t width, int64_t vocabulary) {
  const c10::InferenceMode no_gradients;
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
  const at::Tensor hidden = random({rows, width});
  const at::Tensor weight = random({vocabulary, width});
  at::Tensor logits = random({rows, vocabulary});
  at::Tensor grad_hidden = at::empty_like(hidden);
  const double operations =
      2.0 * static_cast<double>(rows * width) * static_cast<double>(vocabulary);
  std::printf("%s, %lld rows, width %lld, vocabulary %lld, %d thread(s)\n", processor().c_str(),
              static_cast<long long>(rows), static_cast<long long>(width),
              static_cast<long long>(vocabulary), at::get_num_threads());
  compare("logits", operations, {"at::mm", [&] { at::mm_out(logits, hidden, weight.t()); }},
          {"here", [&] { ops::cpu::head_logits(logits, hidden, weight); }});
  compare("input gradient", operations,
          {"at::mm", [&] { at::mm_out(grad_hidden, logits, weight); }},
          {"here", [&] { ops::cpu::head_input_gradient(grad_hidden, logits, weight); }});
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  long long sizes[] = {511, 1024, 250880};
  for (int i = 1; i < argc && i <= 3; ++i) {
    sizes[i - 1] = std::atoll(argv[i]);
  }
  if (argc > 4 || *std::min_element(std::begin(sizes), std::end(sizes)) < 1) {
    std::fprintf(stderr, "usage: head_products [ROWS WIDTH VOCABULARY]\n");
    return 64;
  }
  sherd::benchmarks::run(sizes[0], sizes[1], sizes[2]);
  return 0;
}
