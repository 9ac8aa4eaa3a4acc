#pragma once
// Question answering data in SQuAD v1.1's JSON.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace llm::text {

/// A gold answer: a span of its question's context.
struct SquadAnswer {
  std::string text;
  std::int64_t begin_byte = 0;  ///< where it starts in the context (the file counts code points)
};

struct SquadQuestion {
  std::string id;
  std::string question;
  std::size_t context = 0;           ///< index into SquadFile::contexts
  std::vector<SquadAnswer> answers;  ///< at least one; training learns the first
};

/// A SQuAD file in file order; each paragraph's context is held once.
struct SquadFile {
  std::vector<std::string> contexts;
  std::vector<SquadQuestion> questions;
};

/// Reads the bytes of `name`, a SQuAD v1.1 file. Fields that are not needed (`title`, `version`, …)
/// are ignored. Throws sherd::Error(BadData) with line and column of a syntax error, or with every
/// other fault of the file (at most 20 are reported) by JSON pointer, such as
/// `/data/3/paragraphs/0/qas/2/id`: a field that is missing, empty or of another type, an answer
/// that is not at `answer_start`, an id that occurs twice, an unanswerable question of SQuAD v2.0,
/// a file without questions. Source: Rajpurkar et al. 2016, arXiv:1606.05250.
SquadFile parse_squad(const std::string& bytes, const std::string& name);

}  // namespace llm::text
