#include "llm/text/answer.h"

#include "llm/text/c_interface.h"

namespace llm::text {

std::string normalized_answer(std::string_view answer) {
  char* normalized = nullptr;
  std::size_t length_bytes = 0;
  checked([&](char** error) {
    return sherd_text_squad_normalize(slice_of(answer), &normalized, &length_bytes, error);
  });
  const OwnedString owned(normalized);
  return {owned.get(), length_bytes};
}

}  // namespace llm::text
