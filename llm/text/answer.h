#pragma once
// An answer without what the SQuAD evaluation does not count.

#include <string>
#include <string_view>

namespace llm::text {

/// An answer as the official SQuAD v1.1 evaluation script normalises it: lower case, without ASCII
/// punctuation, without the words a, an, the, words separated by one space. Lower case, letters and
/// white space are Unicode's, as in Python, whatever the locale. Bytes that are no UTF-8 count as
/// U+FFFD.
std::string normalized_answer(std::string_view answer);

}  // namespace llm::text
