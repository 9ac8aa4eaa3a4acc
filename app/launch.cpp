// sherd launch -n RANKS VERB …

#include <filesystem>
#include <memory>
#include <optional>

#include "app/verbs.h"
#include "launch/supervisor.h"
#include "sherd/error.h"

namespace app {

void add_launch(CLI::App& program, int& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "launch", "Start a verb on several ranks of this host and watch over them");
  auto ranks = std::make_shared<int>(1);
  auto port = std::make_shared<std::optional<std::uint16_t>>();
  verb->add_option("-n,--ranks", *ranks, "number of ranks")->required();
  verb->add_option("--port", *port, "of the rendezvous on 127.0.0.1 (default: a free one)");
  verb->prefix_command();
  verb->footer("Example: sherd launch -n 2 train my.toml --optim.lr 1e-5");
  verb->callback([verb, ranks, port, &exit_code] {
    std::vector<std::string> command = verb->remaining();
    if (command.empty() || (command.front() != "train" && command.front() != "eval")) {
      throw sherd::Error(sherd::ExitCode::Usage,
                         "sherd launch starts `train` or `eval`: sherd launch -n 2 train my.toml" +
                             (command.empty() ? std::string() : "; got '" + command.front() + "'"));
    }
    command.insert(command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
    exit_code = sherd::launch::supervise({std::move(command), *ranks, *port});
  });
}

}  // namespace app
