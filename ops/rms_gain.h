#pragma once

#include <cstdint>

namespace sherd::ops {

/// How RMSNorm applies its weight w to the normalised input n, which is in fp32. In fp32 the first
/// two are the same.
enum class RmsGain : std::uint8_t {
  Rounded,  ///< n is rounded to the input's dtype and then multiplied by w: Llama and most others
  Wide,     ///< n × w in fp32, rounded once: OLMo 2
  OnePlus,  ///< n × (1 + w) in fp32, rounded once: Gemma
};

}  // namespace sherd::ops
