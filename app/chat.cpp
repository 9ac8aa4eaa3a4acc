// sherd chat MODEL|RUN: a conversation in the terminal.

#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "app/chat_session.h"
#include "app/device.h"
#include "app/hub_names.h"
#include "app/live_line.h"
#include "app/model_flags.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/sampling_flags.h"
#include "app/verbs.h"
#include "llm/eval/evaluated_model.h"
#include "llm/setup/load_model.h"
#include "llm/text/chosen_template.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::Error;
using sherd::ExitCode;

struct ChatFlags {
  ModelFlags model;
  std::string chat_template;  // empty: the run's, else the model's
  ChatOptions options;
};

llm::eval::EvaluatedChat chat_model(const ChatFlags& flags, const llm::eval::EvaluatedModel& source,
                                    const llm::text::Tokenizer& tokenizer) {
  auto found = llm::eval::chat_of(source, tokenizer, flags.chat_template);
  if (!found.encoder) {
    throw Error(ExitCode::BadData, llm::text::text_without_template(tokenizer.folder()) +
                                       ". A model that continues texts answers `sherd generate`.");
  }
  return found;
}

void require_one_rank(const Rank& rank) {
  if (rank.environment().world_size > 1) {
    throw Error(ExitCode::Usage,
                "sherd chat runs on one rank: several cannot read from one terminal. `sherd "
                "generate --prompts FILE -n N` answers on several.");
  }
}

int chat(Rank& rank, ChatFlags flags) {
  require_one_rank(rank);
  // Standard output is reserved for the model's text.
  const auto progress = progress_of(rank, /*json_on_stdout=*/true);
  auto starting = std::make_unique<llm::track::Working>(progress.get(), "starting");
  HubNames names({.json_on_stdout = true, .progress = progress.get()}, &rank);
  resolve_model(names, flags.model);
  sherd::World world = rank.join({.device = device_of(rank, flags.model.device)});
  const auto source = find_model(flags.model);
  const auto tokenizer = llm::eval::tokenizer_of(source);
  const auto shape = llm::eval::shape_of(source);
  llm::eval::require_same_model(source, shape, tokenizer);
  tokenizer.check_vocabulary(shape.shapes->vocab_rows());
  auto conversing = chat_model(flags, source, tokenizer);
  for (const std::string& notice : source.notices) {
    progress->say(notice);
  }
  if (!source.checkpoint.empty()) {
    progress->say("checkpoint " + source.checkpoint);
  }
  sherd::ShardOptions options;
  options.precision.param_dtype = source.param_dtype;
  auto model = llm::track::with_progress(progress.get(), "loading the model", [&] {
    return llm::eval::load_evaluated(source, shape, sherd::Mesh::shard(world), options);
  });
  starting.reset();
  ChatSession(model, tokenizer, std::move(conversing), flags.options, *progress).run();
  return 0;
}

void add_chat_flags(CLI::App& verb, ChatFlags& flags) {
  add_model_flags(verb, flags.model);
  add_template_flag(verb, flags.chat_template);
  verb.add_option("--system", flags.options.system, "the system message at the beginning");
  verb.add_option("--max-new-tokens", flags.options.max_new_tokens,
                  "most tokens to generate per answer")
      ->capture_default_str()
      ->check(within(std::int64_t{1}, std::int64_t{1} << 40));
  add_sampling_flags(verb, flags.options.sampling);
}

}  // namespace

void add_chat(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand("chat", "Talk with a model in the terminal");
  auto flags = std::make_shared<ChatFlags>();
  add_chat_flags(*verb, *flags);
  verb->footer(
      "Each line of standard input is a message. /reset, /system TEXT, /help and /exit are "
      "commands; Ctrl-C stops an answer, Ctrl-D ends.");
  verb->callback([flags, &chosen] {
    take_model(flags->model);
    chosen = [flags] {
      Rank rank(OnSignal::EndProcess);
      return rank.run([&] { return chat(rank, *flags); });
    };
  });
}

}  // namespace app
