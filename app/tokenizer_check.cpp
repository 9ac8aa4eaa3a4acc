// tokenizer_check TOKENIZER_DIR CASES.jsonl: does the tokenizer produce the expected ids?
//
// Prints what llm::text::compare_with_recorded() returns. Exits 0 when it could compare.

#include <iostream>

#include "llm/text/tokenizer.h"
#include "sherd/error.h"

int main(int argc, char** argv) {
  try {
    if (argc != 3) {
      throw sherd::Error(sherd::ExitCode::Usage,
                         "usage: tokenizer_check TOKENIZER_DIR CASES.jsonl");
    }
    const auto tokenizer = llm::text::Tokenizer::from_folder(argv[1]);
    std::cout << compare_with_recorded(tokenizer, argv[2]) << '\n';
    return static_cast<int>(sherd::ExitCode::Done);
  } catch (const sherd::Error& error) {
    std::cerr << "tokenizer_check: " << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "tokenizer_check: internal error: " << error.what() << '\n';
    return static_cast<int>(sherd::ExitCode::Internal);
  }
}
