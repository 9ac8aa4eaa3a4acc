#include "llm/data/samples.h"

namespace llm::data {
namespace {

struct Storage {
  std::vector<std::int64_t> begins = {0};
  std::vector<std::int64_t> supervised_begins;
  std::vector<text::TokenId> ids;
};

}  // namespace

Samples::Samples(const std::vector<text::LabelledPrompt>& prompts) {
  const auto storage = std::make_shared<Storage>();
  for (const text::LabelledPrompt& prompt : prompts) {
    storage->ids.insert(storage->ids.end(), prompt.ids.begin(), prompt.ids.end());
    storage->begins.push_back(static_cast<std::int64_t>(storage->ids.size()));
    storage->supervised_begins.push_back(prompt.supervised_begin);
  }
  arrays_ = {storage->begins, storage->supervised_begins, storage->ids};
  owner_ = storage;
}

Sample Samples::operator[](std::size_t index) const {
  const std::int64_t begin = arrays_.begins[index];
  const std::int64_t size = arrays_.begins[index + 1] - begin;
  return {arrays_.ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)),
          arrays_.supervised_begins[index]};
}

}  // namespace llm::data
