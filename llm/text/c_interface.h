#pragma once
// Helpers for every call of text/sherd_text.h: owned strings, and errors as exceptions. Private to
// llm/text.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sherd/error.h"
#include "text/sherd_text.h"

namespace llm::text {

struct FreeString {
  void operator()(char* string) const { sherd_text_free_string(string); }
};
/// A string that the Rust side allocated.
using OwnedString = std::unique_ptr<char, FreeString>;

/// Calls a function of the C interface, `call(char** error)`; its failure becomes an exception.
/// `before` goes in front of the message.
template <typename Call>
void checked(Call call, const std::string& before = "") {
  char* message = nullptr;
  const std::int32_t status = call(&message);
  const OwnedString owned(message);
  if (status == SHERD_TEXT_OK) {
    return;
  }
  throw sherd::Error(sherd::ExitCode::BadData, before + owned.get());
}

inline sherd_text_slice slice_of(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace llm::text
