#include "llm/eval/generation.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/tensor.h>

namespace llm::eval {

namespace {

// The texts being written. Row i of the cache belongs to text going_on[i].
struct Writing {
  std::vector<std::vector<text::TokenId>> answers;
  std::vector<size_t> going_on;
  at::Tensor ids_T;  // what to feed next
  sherd::ops::Documents documents;
};

Writing begin(std::span<const std::vector<text::TokenId>> prompts) {
  Writing writing;
  writing.answers.resize(prompts.size());
  writing.going_on.resize(prompts.size());
  std::iota(writing.going_on.begin(), writing.going_on.end(), size_t{0});
  std::vector<int64_t> ids, lengths;
  for (const auto& prompt : prompts) {
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    lengths.push_back(std::ssize(prompt));
  }
  writing.ids_T = at::tensor(ids, at::kLong);
  writing.documents = sherd::ops::Documents::of_lengths(lengths);
  return writing;
}

// Takes each row's next token and prepares the following call: one token of each unfinished row.
// The last row takes the place of one that is finished.
void advance(Writing& writing, const at::Tensor& next_B, std::span<const text::TokenId> stop_ids,
             model::KvCache& cache) {
  std::vector<int64_t> rows(writing.going_on.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const auto next = next_B.accessor<int64_t, 1>();
  const auto token_of = [&](int64_t row) { return static_cast<text::TokenId>(next[row]); };
  for (size_t i = 0; i < rows.size();) {
    if (std::find(stop_ids.begin(), stop_ids.end(), token_of(rows[i])) != stop_ids.end()) {
      rows[i] = rows.back();
      writing.going_on[i] = writing.going_on.back();
      rows.pop_back();
      writing.going_on.pop_back();
    } else {
      ++i;
    }
  }
  cache.keep(rows);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < rows.size(); ++i) {
    writing.answers[writing.going_on[i]].push_back(token_of(rows[i]));
    ids.push_back(token_of(rows[i]));
  }
  writing.ids_T = at::tensor(ids, at::kLong);
  writing.documents = sherd::ops::Documents::of_equal_length(std::ssize(rows), 1);
}

}  // namespace

std::optional<std::vector<std::vector<text::TokenId>>> generate(
    sherd::Sharded<model::CausalLm>& model, std::span<const std::vector<text::TokenId>> prompts,
    std::int64_t max_new_tokens, std::span<const text::TokenId> stop_ids,
    const StopRequested& stop_requested) {
  const at::NoGradGuard no_grad;
  Writing writing = begin(prompts);
  model::KvCache cache(writing.documents.longest() + max_new_tokens);
  for (std::int64_t step = 0; step < max_new_tokens; ++step) {
    const at::Tensor scores_BV = model.run(
        [&](model::CausalLmImpl& lm, const at::Tensor& ids,
            const sherd::ops::Documents& documents) { return lm.decode(ids, documents, cache); },
        writing.ids_T, writing.documents);
    advance(writing, scores_BV.argmax(-1).cpu(), stop_ids, cache);
    double unfinished_and_stops[] = {static_cast<double>(writing.going_on.size()),
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
