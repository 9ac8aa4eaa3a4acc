// Texts and bytes between ranks as sums of numbers: the slow default of a back end.

#include "sherd/backend.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace sherd {

namespace {

constexpr size_t kBytesInANumber =
    6;  // whole numbers of 48 bits are doubles, and so are sums with 0
constexpr size_t kNumbersAtATime = 4096;

std::vector<double> packed(std::span<const char> bytes) {
  std::vector<double> numbers;
  for (size_t first = 0; first < bytes.size(); first += kBytesInANumber) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + first, std::min(kBytesInANumber, bytes.size() - first));
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

void unpack(std::span<const double> numbers, std::span<char> bytes) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<uint64_t>(numbers[i]);
    const size_t first = i * kBytesInANumber;
    std::memcpy(bytes.data() + first, &number, std::min(kBytesInANumber, bytes.size() - first));
  }
}

size_t numbers_of(size_t bytes) {
  return (bytes + kBytesInANumber - 1) / kBytesInANumber;
}

}  // namespace

std::vector<std::string> Backend::all_gather(const std::string& text) {
  const auto ranks = static_cast<size_t>(size());
  const auto mine = static_cast<size_t>(rank());
  std::vector<double> lengths(ranks, 0.0);
  lengths[mine] = static_cast<double>(text.size());
  control().all_reduce(lengths, ReduceOp::Sum);
  std::vector<size_t> begins(ranks + 1, 0);
  for (size_t r = 0; r < ranks; ++r) {
    begins[r + 1] = begins[r] + numbers_of(static_cast<size_t>(lengths[r]));
  }
  std::vector<double> numbers(begins.back(), 0.0);
  const std::vector<double> own = packed(text);
  std::copy(own.begin(), own.end(), numbers.begin() + static_cast<std::ptrdiff_t>(begins[mine]));
  control().all_reduce(numbers, ReduceOp::Sum);
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) {
    texts.emplace_back(static_cast<size_t>(lengths[r]), '\0');
    unpack(std::span(numbers).subspan(begins[r], begins[r + 1] - begins[r]), texts.back());
  }
  return texts;
}

void Backend::broadcast(void* data, int64_t bytes, int root) {
  constexpr size_t kBytesAtATime = kNumbersAtATime * kBytesInANumber;
  std::span<char> left(static_cast<char*>(data), static_cast<size_t>(bytes));
  while (!left.empty()) {
    const std::span<char> now = left.first(std::min(left.size(), kBytesAtATime));
    std::vector<double> numbers =
        rank() == root ? packed(now) : std::vector<double>(numbers_of(now.size()), 0.0);
    control().all_reduce(numbers, ReduceOp::Sum);
    unpack(numbers, now);
    left = left.subspan(now.size());
  }
}

void Backend::send(void* data, int64_t bytes, int from, int to) {
  const bool takes_part = rank() == from || rank() == to;
  std::vector<char> unused(takes_part ? 0 : static_cast<size_t>(bytes));
  broadcast(takes_part ? data : unused.data(), bytes, from);
}

}  // namespace sherd
