#include "llm/eval/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/core/PhiloxRNGEngine.h>

namespace llm::eval {

namespace {

struct Candidate {
  double weight;  // the probability but for a factor
  text::TokenId id;
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

double total_of(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) {
    total += candidate.weight;
  }
  return total;
}

// In order of ids, without those of no weight.
std::vector<Candidate> candidates_of(std::span<const float> scores_V, double temperature) {
  const double best = *std::max_element(scores_V.begin(), scores_V.end());
  std::vector<Candidate> candidates;
  for (std::size_t id = 0; id < scores_V.size(); ++id) {
    const double weight = std::exp((scores_V[id] - best) / temperature);
    if (weight > 0) {
      candidates.push_back({weight, static_cast<text::TokenId>(id)});
    }
  }
  return candidates;
}

void keep_likeliest(std::vector<Candidate>& candidates, std::int64_t count) {
  if (count > 0 && count < std::ssize(candidates)) {
    std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(),
                      is_likelier);
    candidates.resize(static_cast<std::size_t>(count));
  }
}

// Candidates below the mean of what may be left out are left out together: few remain to be sorted.
void keep_probability(std::vector<Candidate>& candidates, double probability) {
  if (probability >= 1) {
    return;
  }
  const double total = total_of(candidates);
  const double least = (1 - probability) * total / static_cast<double>(candidates.size());
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < least; });
  std::sort(candidates.begin(), candidates.end(), is_likelier);
  double reached = 0;
  std::size_t kept = 0;
  do {
    reached += candidates[kept++].weight;
  } while (kept < candidates.size() && reached < probability * total);
  candidates.resize(kept);
}

// In [0, 1), a multiple of 2^-53.
double random_unit(std::uint64_t seed, const TokenPlace& place) {
  at::philox_engine engine(seed, place.text, place.position);
  const std::uint64_t high = engine();
  return static_cast<double>((high << 32U | engine()) >> 11U) * 0x1p-53;
}

}  // namespace

text::TokenId sampled_token(std::span<const float> scores_V, const Sampling& sampling,
                            const TokenPlace& place) {
  std::vector<Candidate> candidates = candidates_of(scores_V, sampling.temperature);
  if (candidates.empty()) {  // scores that are not finite
    return static_cast<text::TokenId>(std::max_element(scores_V.begin(), scores_V.end()) -
                                      scores_V.begin());
  }
  keep_likeliest(candidates, sampling.top_k);
  keep_probability(candidates, sampling.top_p);
  double remaining = random_unit(sampling.seed, place) * total_of(candidates);
  for (const Candidate& candidate : candidates) {
    remaining -= candidate.weight;
    if (remaining < 0) {
      return candidate.id;
    }
  }
  return candidates.back().id;  // rounding
}

}  // namespace llm::eval
