#include "llm/eval/generation.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/tensor.h>

#include "llm/eval/sampling.h"

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

// Each row's next token: int64 [B], on the host.
at::Tensor next_tokens(const Writing& writing, const at::Tensor& scores_BV,
                       const GenerationOptions& options) {
  if (options.sampling.is_greedy()) {
    return scores_BV.argmax(-1).cpu();
  }
  const at::Tensor rows = scores_BV.to(at::kCPU, at::kFloat).contiguous();
  std::vector<int64_t> next;
  for (size_t row = 0; row < writing.going_on.size(); ++row) {
    const size_t text = writing.going_on[row];
    const at::Tensor scores_V = rows[static_cast<int64_t>(row)];
    next.push_back(sampled_token(
        {scores_V.const_data_ptr<float>(), static_cast<size_t>(scores_V.numel())}, options.sampling,
        {options.text_numbers.empty() ? text : options.text_numbers.at(text),
         writing.answers[text].size()}));
  }
  return at::tensor(next, at::kLong);
}

// Takes each row's next token and prepares the following call: one token of each unfinished row.
// The last row takes the place of one that is finished.
void advance(Writing& writing, const at::Tensor& next_B, std::span<const text::TokenId> stop_ids,
             const GenerationOptions& options, model::KvCache& cache) {
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
    if (options.on_token) {
      options.on_token(writing.going_on[i], token_of(rows[i]));
    }
    ids.push_back(token_of(rows[i]));
  }
  writing.ids_T = at::tensor(ids, at::kLong);
  writing.documents = sherd::ops::Documents::of_equal_length(std::ssize(rows), 1);
}

}  // namespace

std::optional<std::vector<std::vector<text::TokenId>>> generate(
    sherd::Sharded<model::CausalLm>& model, std::span<const std::vector<text::TokenId>> prompts,
    std::int64_t max_new_tokens, std::span<const text::TokenId> stop_ids,
    const GenerationOptions& options) {
  const at::NoGradGuard no_grad;
  Writing writing = begin(prompts);
  model::KvCache cache(writing.documents.longest() + max_new_tokens);
  for (std::int64_t step = 0; step < max_new_tokens; ++step) {
    const at::Tensor scores_BV = model.run(
        [&](model::CausalLmImpl& lm, const at::Tensor& ids,
            const sherd::ops::Documents& documents) { return lm.decode(ids, documents, cache); },
        writing.ids_T, writing.documents);
    advance(writing, next_tokens(writing, scores_BV, options), stop_ids, options, cache);
    double unfinished_and_stops[] = {
        static_cast<double>(writing.going_on.size()),
        options.stop_requested && options.stop_requested() ? 1.0 : 0.0};
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
