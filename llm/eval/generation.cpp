#include "llm/eval/generation.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros.h>

namespace llm::eval {

namespace {

// The texts being written: what to feed next, and which rows go on.
struct Writing {
  std::vector<std::vector<text::TokenId>> answers;
  std::vector<bool> finished;
  at::Tensor input_ids_BT;
  at::Tensor mask_BT;

  [[nodiscard]] std::int64_t unfinished() const {
    return std::count(finished.begin(), finished.end(), false);
  }
};

Writing begin(std::span<const std::vector<text::TokenId>> prompts) {
  Writing writing;
  writing.answers.resize(prompts.size());
  writing.finished.assign(prompts.size(), false);
  // A rank without prompts reads one token of padding: it must gather with the others.
  const auto rows = static_cast<int64_t>(std::max<size_t>(prompts.size(), 1));
  size_t longest = 1;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, prompt.size());
  }
  writing.input_ids_BT = at::zeros({rows, static_cast<int64_t>(longest)}, at::kLong);
  writing.mask_BT = at::zeros_like(writing.input_ids_BT);
  auto ids = writing.input_ids_BT.accessor<int64_t, 2>();
  auto mask = writing.mask_BT.accessor<int64_t, 2>();
  mask[0][0] = 1;
  for (size_t row = 0; row < prompts.size(); ++row) {
    for (size_t t = 0; t < prompts[row].size(); ++t) {
      ids[static_cast<int64_t>(row)][static_cast<int64_t>(t)] = prompts[row][t];
      mask[static_cast<int64_t>(row)][static_cast<int64_t>(t)] = 1;
    }
  }
  return writing;
}

// Takes each row's next token and prepares the following call: one token a row.
void advance(Writing& writing, const at::Tensor& next_B, std::span<const text::TokenId> stop_ids) {
  const int64_t rows = writing.input_ids_BT.size(0);
  writing.input_ids_BT = at::zeros({rows, 1}, at::kLong);
  writing.mask_BT = at::zeros({rows, 1}, at::kLong);
  auto ids = writing.input_ids_BT.accessor<int64_t, 2>();
  auto mask = writing.mask_BT.accessor<int64_t, 2>();
  const auto next = next_B.accessor<int64_t, 1>();
  for (size_t row = 0; row < writing.answers.size(); ++row) {
    const auto token = static_cast<text::TokenId>(next[static_cast<int64_t>(row)]);
    if (!writing.finished[row] &&
        std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      writing.finished[row] = true;
    }
    if (!writing.finished[row]) {
      writing.answers[row].push_back(token);
      ids[static_cast<int64_t>(row)][0] = token;
      mask[static_cast<int64_t>(row)][0] = 1;
    }
  }
}

}  // namespace

std::optional<std::vector<std::vector<text::TokenId>>> generate(
    sherd::Sharded<model::CausalLm>& model, std::span<const std::vector<text::TokenId>> prompts,
    std::int64_t max_new_tokens, std::span<const text::TokenId> stop_ids,
    const StopRequested& stop_requested) {
  const at::NoGradGuard no_grad;
  Writing writing = begin(prompts);
  model::KvCache cache(writing.input_ids_BT.size(1) + max_new_tokens);
  for (std::int64_t step = 0; step < max_new_tokens; ++step) {
    const at::Tensor scores_BV =
        model.run([&](model::CausalLmImpl& lm, const at::Tensor& ids,
                      const at::Tensor& mask) { return lm.decode(ids, mask, cache); },
                  writing.input_ids_BT, writing.mask_BT);
    advance(writing, scores_BV.argmax(-1), stop_ids);
    double unfinished_and_stops[] = {static_cast<double>(writing.unfinished()),
                                     stop_requested && stop_requested() ? 1.0 : 0.0};
    model.world().all_reduce(unfinished_and_stops);
    if (unfinished_and_stops[1] > 0) {
      return std::nullopt;
    }
    if (unfinished_and_stops[0] == 0) {
      break;
    }
  }
  return std::move(writing.answers);
}

}  // namespace llm::eval
