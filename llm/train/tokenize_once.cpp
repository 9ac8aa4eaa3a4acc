#include "llm/train/tokenize_once.h"

#include <exception>
#include <optional>

namespace llm::train {

data::TokenizedFile tokenize_once(sherd::World& world, const data::TokenCache& cache,
                                  const std::string& path, const text::PromptEncoder& encoder,
                                  std::int64_t limit,
                                  const std::function<void(const std::string& line)>& say) {
  const std::string key = data::token_key(path, encoder, limit);
  const auto encode = [&] {
    return data::tokenize(data::read_questions(path, limit), path, encoder);
  };
  std::optional<data::TokenizedFile> found = cache.find(key, path);
  std::exception_ptr fault;
  if (!found && world.rank() == 0) {
    try {
      found = encode();
      if (const std::string why = cache.write(key, *found); !why.empty()) {
        say("tokens are not kept for the next run: " + why);
      }
    } catch (...) {
      fault = std::current_exception();  // the others wait below, and will find it too
    }
  }
  world.barrier();
  if (fault) {
    std::rethrow_exception(fault);
  }
  if (!found) {
    found = cache.find(key, path);
  }
  return found ? *found : encode();
}

}  // namespace llm::train
