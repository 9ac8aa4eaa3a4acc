#include "llm/train/tokenize_once.h"

#include <optional>

#include "llm/train/agreement.h"

namespace llm::train {

namespace {

constexpr std::size_t kWorthALine_bytes = std::size_t{4} << 20;  // some seconds of encoding

}  // namespace

data::TokenizedFile tokenize_once(sherd::World& world, const data::TokenCache& cache,
                                  const data::DataFile& file, const text::PromptEncoder& encoder,
                                  std::int64_t limit,
                                  const std::function<void(const std::string& line)>& say) {
  std::string key;
  std::optional<data::TokenizedFile> found;
  const auto encode = [&] {
    return data::tokenize(data::questions_of(file, limit), file.name, encoder);
  };
  together(world, [&] {
    key = data::token_key(file, encoder, limit);
    found = cache.find(key, file.name);
    if (!found && world.rank() == 0) {
      if (file.bytes.size() >= kWorthALine_bytes) {
        say("tokenizing " + file.name + " …");
      }
      found = encode();
      if (const std::string why = cache.write(key, *found); !why.empty()) {
        say("tokens are not kept for the next run: " + why);
      }
    }
  });
  together(world, [&] {
    if (!found) {
      found = cache.find(key, file.name);
    }
    if (!found) {
      found = encode();
    }
  });
  return std::move(*found);
}

}  // namespace llm::train
