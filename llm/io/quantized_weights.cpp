#include "llm/io/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "ops/q8_0.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace llm::io {
namespace {

namespace q8_0 = sherd::ops::q8_0;

void require_finite(const sherd::SafetensorsLocation& stored, const std::vector<float>& numbers,
                    std::int64_t count, std::int64_t first) {
  const auto end = numbers.begin() + count;
  const auto found =
      std::find_if(numbers.begin(), end, [](float number) { return !std::isfinite(number); });
  if (found != end) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("{}: tensor {}: element {} is {}, and Q8_0 holds finite numbers: "
                    "train with model.quantize = \"none\", or repair the file",
                    stored.file->path(), stored.entry->name, first + (found - numbers.begin()),
                    *found));
  }
}

}  // namespace

void read_q8_0(const sherd::SafetensorsLocation& stored, std::int64_t begin, std::int64_t end,
               void* out) {
  constexpr std::int64_t kBlocks = 8192;
  const std::int64_t first = begin / q8_0::kBlockBytes;
  const std::int64_t last = (end + q8_0::kBlockBytes - 1) / q8_0::kBlockBytes;
  const auto most = static_cast<std::size_t>(std::min(kBlocks, last - first));
  std::vector<float> numbers(most * q8_0::kBlockNumbers);
  std::vector<std::uint8_t> bytes(most * q8_0::kBlockBytes);
  for (std::int64_t block = first; block < last; block += kBlocks) {
    const std::int64_t count = std::min(kBlocks, last - block);
    const std::int64_t number = block * q8_0::kBlockNumbers;
    stored.file->read_elements(*stored.entry, number, number + count * q8_0::kBlockNumbers,
                               at::kFloat, numbers.data());
    require_finite(stored, numbers, count * q8_0::kBlockNumbers, number);
    q8_0::quantize(numbers.data(), count, bytes.data());
    const std::int64_t byte = block * q8_0::kBlockBytes;
    const std::int64_t from = std::max(begin, byte);
    const std::int64_t until = std::min(end, byte + count * q8_0::kBlockBytes);
    std::memcpy(static_cast<std::uint8_t*>(out) + (from - begin), bytes.data() + (from - byte),
                static_cast<std::size_t>(until - from));
  }
}

std::function<sherd::StoredReader(const std::string&)> quantizing_readers(
    const model::CausalLmImpl& model) {
  std::set<std::string> quantized;
  for (const auto& parameter : model.named_parameters()) {
    if (q8_0::is_quantized(parameter.value())) {
      quantized.insert(parameter.key());
    }
  }
  return [quantized = std::move(quantized)](const std::string& parameter) {
    return quantized.contains(parameter) ? sherd::StoredReader(&read_q8_0) : nullptr;
  };
}

}  // namespace llm::io
