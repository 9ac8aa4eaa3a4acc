#include "llm/data/samples.h"

#include <algorithm>

#include "files/mapped_file.h"

namespace llm::data {

struct SamplesBuilder::Storage {
  std::vector<std::int64_t> begins = {0};
  std::vector<text::TokenId> ids;
  std::vector<std::uint8_t> supervised;
  std::vector<SampleCut> cuts;
};

SamplesBuilder::SamplesBuilder() : storage_(std::make_shared<Storage>()) {}

void SamplesBuilder::add(const Sample& sample) {
  Storage& all = *storage_;
  all.ids.insert(all.ids.end(), sample.ids.begin(), sample.ids.end());
  all.supervised.insert(all.supervised.end(), sample.supervised.begin(), sample.supervised.end());
  all.begins.push_back(static_cast<std::int64_t>(all.ids.size()));
  all.cuts.push_back(sample.cut);
}

Samples SamplesBuilder::build() && {
  const Samples::Arrays arrays{storage_->begins, storage_->ids, storage_->supervised,
                               storage_->cuts};
  return {std::move(storage_), arrays};
}

std::int64_t Sample::supervised_tokens() const {
  return std::count(supervised.begin(), supervised.end(), std::uint8_t{1});
}

std::span<const text::TokenId> Sample::prompt() const {
  const auto first = std::find(supervised.begin(), supervised.end(), std::uint8_t{1});
  return ids.first(static_cast<std::size_t>(first - supervised.begin()));
}

Samples::Samples(const std::vector<text::LabelledPrompt>& prompts) {
  SamplesBuilder builder;
  for (const text::LabelledPrompt& prompt : prompts) {
    builder.add({prompt.ids,
                 prompt.supervised,
                 {.prompt_tokens = static_cast<std::int32_t>(prompt.cut_tokens),
                  .answer_tokens = static_cast<std::int32_t>(prompt.cut_answer_tokens),
                  .answer_is_outside = prompt.answer_is_outside ? 1 : 0}});
  }
  *this = std::move(builder).build();
}

Sample Samples::operator[](std::size_t index) const {
  const auto begin = static_cast<std::size_t>(arrays_.begins[index]);
  const std::size_t size = static_cast<std::size_t>(arrays_.begins[index + 1]) - begin;
  sherd::files::require_mapped_files();  // else both may be zeros
  return {arrays_.ids.subspan(begin, size), arrays_.supervised.subspan(begin, size),
          arrays_.cuts[index]};
}

}  // namespace llm::data
