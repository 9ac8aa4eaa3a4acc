#pragma once
// Prompts in a file.

#include <string>
#include <vector>

namespace llm::text {

/// A prompt, and where it stands: "prompts.txt:3".
struct GivenPrompt {
  std::string place;
  std::string text;
};

/// Reads `.txt`, a prompt a line, or `.jsonl`, an object with a string `prompt` a line; empty lines
/// and a byte order mark are passed over. Throws sherd::Error: InputMissing; BadData, naming file
/// and line, for a line that is none, text that is not UTF-8 and a file without prompts; Usage for
/// another extension.
[[nodiscard]] std::vector<GivenPrompt> read_prompts(const std::string& path);

}  // namespace llm::text
