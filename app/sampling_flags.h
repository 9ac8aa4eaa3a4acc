#pragma once
// Flags that say how tokens are chosen.

#include <cstdint>

#include <CLI/CLI.hpp>

#include "app/numbers.h"
#include "llm/eval/sampling.h"

namespace app {

/// Adds --temperature, --top-p, --top-k and --seed. The last three need the first.
inline void add_sampling_flags(CLI::App& verb, llm::eval::Sampling& sampling) {
  auto* temperature =
      verb.add_option("--temperature", sampling.temperature,
                      "draw tokens at random from scores divided by this; 0: take the likeliest")
          ->capture_default_str()
          ->check(at_least_zero());
  verb.add_option("--top-p", sampling.top_p,
                  "draw from the likeliest tokens that together reach this probability")
      ->capture_default_str()
      ->check(from_zero_to_one())
      ->needs(temperature);
  verb.add_option("--top-k", sampling.top_k, "draw from this many likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(within(std::int64_t{0}, std::int64_t{1} << 40))
      ->needs(temperature);
  verb.add_option("--seed", sampling.seed, "seed of the random numbers")
      ->capture_default_str()
      ->check(within(std::int64_t{0}, INT64_MAX))
      ->needs(temperature);
}

}  // namespace app
