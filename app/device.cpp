#include "app/device.h"

#include <map>
#include <string>

#include "app/numbers.h"
#include "llm/setup/device.h"
#include "sherd/backend.h"

namespace app {

using llm::config::DeviceKind;

void add_device_flag(CLI::App& verb, DeviceKind& kind) {
  static const std::map<std::string, DeviceKind> kinds = {
      {"auto", DeviceKind::Auto}, {"cpu", DeviceKind::Cpu}, {"cuda", DeviceKind::Cuda}};
  one_of(verb.add_option_function<std::string>(
             "--device", [&kind](const std::string& word) { kind = kinds.at(word); },
             "device of the ranks: auto (GPUs if there are any, one per rank), cpu or cuda"),
         names_in(kinds))
      ->default_str("auto");
}

c10::DeviceType device_of(const Rank& rank, DeviceKind kind) {
  static const sherd::Gpus not_asked = {};
  return llm::setup::chosen_device(kind, kind == DeviceKind::Cpu ? not_asked : sherd::gpus(),
                                   rank.environment().local_world_size,
                                   [&](const std::string& line) {
                                     if (rank.is_first()) {
                                       say(line, /*json_on_stdout=*/true);
                                     }
                                   });
}

}  // namespace app
