#pragma once
// How a token store is laid out: blocks of samples, then a tail that describes them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "llm/inputs/samples.h"

namespace llm::inputs {

/// The first bytes of a store. Changes with the layout and with the rule that makes samples.
inline constexpr std::string_view kStoreMagic = "sherd store 0004";
/// A block holds at most so many bytes, or one sample that is larger.
inline constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

using Digest = std::array<char, 64>;

/// A block: samples side by side. In the machine's byte order: a store stays where it was written.
struct StoreBlock {
  std::int64_t offset = 0;  ///< in the file
  std::int64_t bytes = 0;   ///< a multiple of 8
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  Digest digest{};  ///< SHA-256 of its bytes
};

/// The last bytes of a store.
struct StoreFooter {
  std::int64_t tail_offset = 0;
  std::int64_t tail_bytes = 0;
  Digest digest{};  ///< of the tail
};

/// The tail begins so. The block table follows, then of each sample its tokens, then of each its
/// supervised tokens, then of each the number of its record, then of each where its second document
/// begins (4 bytes each), then the report as JSON.
struct StoreTail {
  std::int64_t blocks = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t report_bytes = 0;
};

/// Where the parts of a block begin, in bytes from its begin.
struct BlockLayout {
  BlockLayout(std::int64_t samples, std::int64_t tokens)
      : hashes(0),
        begins(hashes + 8 * static_cast<std::size_t>(samples)),
        text_begins(begins + 4 * static_cast<std::size_t>(samples + 1)),
        records(text_begins + 4 * static_cast<std::size_t>(samples + 1)),
        rejected(records + 4 * static_cast<std::size_t>(samples)),
        ids(rejected + 4 * static_cast<std::size_t>(samples)),
        cuts(ids + 4 * static_cast<std::size_t>(tokens)),
        marks(cuts + sizeof(SampleCut) * static_cast<std::size_t>(samples)),
        texts(marks + static_cast<std::size_t>(tokens)) {}

  std::size_t hashes;       ///< 8 bytes per sample
  std::size_t begins;       ///< of ids, 4 bytes each, one more than samples
  std::size_t text_begins;  ///< of texts, the same
  std::size_t records;      ///< numbers, 4 bytes per sample
  std::size_t rejected;     ///< Sample::rejected_begin, 4 bytes per sample
  std::size_t ids;          ///< 4 bytes per token
  std::size_t cuts;         ///< 12 bytes per sample
  std::size_t marks;        ///< 1 byte per token: 1 if supervised, else 0
  std::size_t texts;        ///< to the block's end, which is padded
};

static_assert(sizeof(StoreBlock) == 104 && sizeof(StoreFooter) == 80 && sizeof(StoreTail) == 32);
static_assert(sizeof(SampleCut) == 12 && sizeof(text::TokenId) == 4);

}  // namespace llm::inputs
