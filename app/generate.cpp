// sherd generate MODEL|RUN [--prompt TEXT | --prompts FILE] [-o FILE]

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "app/device.h"
#include "app/hub_names.h"
#include "app/launch.h"
#include "app/live_line.h"
#include "app/model_flags.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/sampling_flags.h"
#include "app/verbs.h"
#include "files/output.h"
#include "files/sha256.h"
#include "llm/eval/completion.h"
#include "llm/eval/evaluated_model.h"
#include "llm/inputs/data_options.h"
#include "llm/io/hf_config.h"
#include "llm/setup/agreement.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/text/chosen_template.h"
#include "llm/text/conversation.h"
#include "llm/text/printable.h"
#include "llm/text/prompt_file.h"
#include "llm/text/record_prompt.h"
#include "sherd/error.h"

namespace app {

namespace {

using llm::text::GivenPrompt;
using sherd::Error;
using sherd::ExitCode;

struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;  // without one and without a file: the terminal
  std::string prompts;
  std::string out;
  llm::eval::CompletionOptions options;
  bool chat = false;
  bool raw = false;
  std::string chat_template;  // empty: the run's, else the model's
  std::optional<int> ranks;

  [[nodiscard]] bool asks_at_terminal() const { return !prompt && prompts.empty(); }
};

std::vector<GivenPrompt> given_prompts(const GenerateFlags& flags) {
  if (flags.prompt) {
    return {{"--prompt", *flags.prompt}};
  }
  return flags.prompts.empty() ? std::vector<GivenPrompt>()
                               : llm::text::read_prompts(flags.prompts);
}

// From text to ids, as this model wants it: by its chat template; what a run has trained, as it was
// trained.
class Encoder {
 public:
  Encoder(const GenerateFlags& flags, const llm::eval::EvaluatedModel& source,
          llm::text::Tokenizer tokenizer, std::int64_t context)
      : tokenizer_(std::move(tokenizer)),
        context_(context),
        max_new_tokens_(flags.options.max_new_tokens) {
    const bool has_learned = !source.chat_template.empty();
    if (flags.raw && !has_learned) {
      // Whatever is wrong with the folder's template.
      stop_ids_ = llm::eval::stop_ids_of(source, tokenizer_);
      return;
    }
    llm::eval::EvaluatedChat found = llm::eval::chat_of(source, tokenizer_, flags.chat_template);
    stop_ids_ = std::move(found.stop_ids);
    if (flags.raw) {
      return;
    }
    if (flags.chat && !found.encoder) {
      throw Error(ExitCode::Usage,
                  "--chat: " + llm::text::text_without_template(tokenizer_.folder()));
    }
    const std::string file = found.encoder ? found.encoder->chat_template().file() : "";
    const bool is_asked = flags.chat || !flags.chat_template.empty();
    if (found.encoder && source.run && !found.was_learned && !is_asked) {
      remark_ = fmt::format(
          "prompts are used unchanged, as in the run's training; --chat applies the chat template "
          "of {}",
          file);
    } else if (found.encoder) {
      remark_ = fmt::format("prompts get the chat template of {}{}; --raw turns it off", file,
                            found.was_learned ? ", as in the run's training" : "");
      chat_ = std::move(found.encoder);
    }
  }

  // A message for people; empty if there was no choice.
  [[nodiscard]] const std::string& remark() const { return remark_; }

  // In tokens: the longest prompt with its answer. Throws as encode().
  [[nodiscard]] std::int64_t longest_text(const std::vector<GivenPrompt>& prompts,
                                          std::int64_t max_new_tokens) const {
    std::int64_t longest = 1;
    for (const GivenPrompt& prompt : prompts) {
      longest = std::max(longest, std::ssize(encode(prompt)) + max_new_tokens);
    }
    return longest;
  }
  // Throws Error(BadData), naming the prompt, for one that is empty or too long.
  [[nodiscard]] std::vector<llm::text::TokenId> encode(const GivenPrompt& prompt) const {
    auto ids = chat_ ? chat_->encode_prompt(llm::text::Conversation::of_user(prompt.text))
                     : llm::text::encode_prompt(tokenizer_, prompt.text);
    const auto tokens = static_cast<std::int64_t>(ids.size());
    if (tokens == 0) {
      throw Error(ExitCode::BadData, prompt.place + ": the prompt is empty");
    }
    if (tokens + max_new_tokens_ > context_) {
      throw Error(ExitCode::BadData,
                  fmt::format("{}: {} and --max-new-tokens {} are more than the model's "
                              "context of {}",
                              prompt.place, llm::text::counted(tokens, "token"), max_new_tokens_,
                              context_));
    }
    return ids;
  }

  [[nodiscard]] std::vector<std::vector<llm::text::TokenId>> encode(
      const std::vector<GivenPrompt>& prompts) const {
    std::vector<std::vector<llm::text::TokenId>> encoded;
    for (const GivenPrompt& prompt : prompts) {
      encoded.push_back(encode(prompt));
    }
    return encoded;
  }

  [[nodiscard]] const llm::text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const std::vector<llm::text::TokenId>& stop_ids() const { return stop_ids_; }

 private:
  llm::text::Tokenizer tokenizer_;
  std::vector<llm::text::TokenId> stop_ids_;
  std::int64_t context_;
  std::int64_t max_new_tokens_;
  std::shared_ptr<const llm::text::ChatEncoder> chat_;
  std::string remark_;
};

// Settings that must agree on all ranks.
llm::setup::Settings generate_settings(const GenerateFlags& flags,
                                       const llm::eval::EvaluatedModel& source,
                                       const std::vector<GivenPrompt>& prompts) {
  std::string texts;
  for (const GivenPrompt& prompt : prompts) {
    texts += prompt.text + '\n';
  }
  return {{"the checkpoint", std::filesystem::path(source.checkpoint).filename().string()},
          {"--max-new-tokens", std::to_string(flags.options.max_new_tokens)},
          {"--batch", std::to_string(flags.options.batch)},
          {"--temperature", fmt::format("{}", flags.options.sampling.temperature)},
          {"--top-p", fmt::format("{}", flags.options.sampling.top_p)},
          {"--top-k", std::to_string(flags.options.sampling.top_k)},
          {"--seed", std::to_string(flags.options.sampling.seed)},
          {"--dtype", llm::io::name_of_dtype(source.param_dtype)},
          {"--raw", flags.raw ? "given" : "not given"},
          {"--chat", flags.chat ? "given" : "not given"},
          {"--template", flags.chat_template.empty() ? "not given" : flags.chat_template},
          {"the prompts (SHA-256)", sherd::files::sha256_of(texts)}};
}

// Progress display; null on ranks other than the first.
using llm::track::Progress;

void remark(Progress* progress, const std::string& line) {
  if (progress != nullptr && !line.empty()) {
    progress->say(line);
  }
}

std::string completion_line(const GivenPrompt& prompt, const std::string& completion) {
  const nlohmann::ordered_json line = {{"prompt", prompt.text}, {"completion", completion}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Reports a prompt that cannot be answered and asks for the next one.
void answer_at_terminal(sherd::Sharded<llm::model::CausalLm>& model, const Encoder& encoder,
                        const GenerateFlags& flags, Progress& progress) {
  std::string line;
  llm::eval::CompletionOptions options = flags.options;
  options.stop_ids = encoder.stop_ids();
  const auto ask = [&line] {
    if (::isatty(STDIN_FILENO) == 1) {
      std::cerr << "> " << std::flush;
    }
    return static_cast<bool>(std::getline(std::cin, line));
  };
  while (ask()) {
    if (line.empty()) {
      continue;
    }
    try {
      const llm::track::Working generating(&progress, "generating");
      llm::eval::complete(model, encoder.encode(std::vector<GivenPrompt>{{"the prompt", line}}),
                          encoder.tokenizer(), options, [&](std::size_t, const std::string& text) {
                            progress.aside([&] { print_result(for_stdout(text)); });
                          });
      ++options.first_number;
    } catch (const Error& error) {
      if (error.code() != ExitCode::BadData) {
        throw;
      }
      say(llm::text::printable(error.what()), /*json_on_stdout=*/true);
    }
  }
}

// The output file, on rank 0, if requested. It appears only when complete, and is opened before
// anything is computed.
std::unique_ptr<sherd::files::NewFile> out_file(const GenerateFlags& flags, sherd::World& world) {
  std::unique_ptr<sherd::files::NewFile> file;
  llm::setup::on_all_ranks(world, [&] {
    if (world.rank() == 0 && !flags.out.empty()) {
      file = std::make_unique<sherd::files::NewFile>(flags.out);
    }
  });
  return file;
}

// To the file, or to standard output as they come.
void answer_given(sherd::Sharded<llm::model::CausalLm>& model, const Encoder& encoder,
                  const GenerateFlags& flags, const std::vector<GivenPrompt>& prompts,
                  Progress* progress) {
  sherd::World& world = model.world();
  const auto encoded =
      llm::setup::read_on_all_ranks(world, [&] { return encoder.encode(prompts); });
  const auto file = out_file(flags, world);
  const auto count = llm::track::counted_in("prompts", progress);
  const llm::track::Working generating(progress, "generating");
  std::string lines;
  const auto take = [&](std::size_t i, const std::string& text) {
    llm::setup::on_all_ranks(world, [&] {  // all ranks end if the output is lost
      if (file) {
        lines += completion_line(prompts[i], text) + '\n';
      } else if (world.rank() == 0) {
        progress->aside([&] {
          print_result(for_stdout(flags.prompt ? text : completion_line(prompts[i], text)));
        });
      }
    });
    count(static_cast<std::int64_t>(i) + 1, std::ssize(prompts));
  };
  llm::eval::complete(model, encoded, encoder.tokenizer(), flags.options, take);
  llm::setup::on_all_ranks(world, [&] {
    if (file) {
      file->write(0, lines.data(), lines.size());
      file->commit();
    }
  });
}

int generate(Rank& rank, GenerateFlags flags) {
  using llm::setup::read_on_all_ranks;
  // Standard output is reserved for the model's text.
  const auto progress = progress_of(rank, /*json_on_stdout=*/true);
  auto starting = std::make_unique<llm::track::Working>(progress.get(), "starting");
  HubNames names({.json_on_stdout = true, .progress = progress.get()}, &rank);
  resolve_model(names, flags.model);
  sherd::World world = rank.join({.device = device_of(rank, flags.model.device)});
  names.require_same(world);
  llm::setup::on_all_ranks(world, [&] {
    if (flags.asks_at_terminal() && world.size() > 1) {
      throw Error(
          ExitCode::Usage,
          "several ranks cannot read prompts from the terminal: give --prompt or --prompts");
    }
  });
  auto source = read_on_all_ranks(world, [&] { return find_model(flags.model); });
  const auto tokenizer = read_on_all_ranks(world, [&] { return llm::eval::tokenizer_of(source); });
  const auto prompts = read_on_all_ranks(world, [&] { return given_prompts(flags); });
  const auto shape = read_on_all_ranks(world, [&] {
    auto read = llm::eval::shape_of(source);
    llm::eval::require_same_model(source, read, tokenizer);
    return read;
  });
  remark(progress.get(), llm::setup::agree_on_start(world, read_on_all_ranks(world, [&] {
                                                      return llm::setup::with_model_identity(
                                                          generate_settings(flags, source, prompts),
                                                          shape.config, tokenizer);
                                                    })));
  const auto encoder = read_on_all_ranks(world, [&] {
    tokenizer.check_vocabulary(shape.shapes->vocab_rows());
    return Encoder(flags, source, tokenizer, shape.shapes->context_length());
  });
  for (const std::string& notice : source.notices) {
    remark(progress.get(), notice);
  }
  remark(progress.get(), source.checkpoint.empty() ? "" : "checkpoint " + source.checkpoint);
  remark(progress.get(), encoder.remark());
  if (!source.run && !flags.asks_at_terminal()) {  // their texts choose the factors of longrope
    source.max_length = read_on_all_ranks(
        world, [&] { return encoder.longest_text(prompts, flags.options.max_new_tokens); });
  }
  remark(progress.get(), llm::setup::rope_remark(shape, source.max_length));
  sherd::ShardOptions options;
  options.precision.param_dtype = source.param_dtype;
  auto model = llm::track::with_progress(progress.get(), "loading the model", [&] {
    return llm::eval::load_evaluated(source, shape, sherd::Mesh::shard(world), options);
  });
  starting.reset();
  flags.options.stop_ids = encoder.stop_ids();
  if (flags.asks_at_terminal()) {
    answer_at_terminal(model, encoder, flags, *progress);
  } else {
    answer_given(model, encoder, flags, prompts, progress.get());
  }
  return 0;
}

void add_flags(CLI::App& verb, GenerateFlags& flags) {
  const auto positive = within(std::int64_t{1}, std::int64_t{1} << 40);
  add_model_flags(verb, flags.model);
  auto* prompt = verb.add_option("--prompt", flags.prompt, "text to continue");
  verb.add_option("--prompts", flags.prompts,
                  "a .txt file with one prompt per line, or a .jsonl file with one object with "
                  "`prompt` per line")
      ->excludes(prompt);
  verb.add_option("-o,--out", flags.out,
                  "file for the answers, one JSON object with prompt and completion per line "
                  "(default: standard output)");
  verb.add_option("--max-new-tokens", flags.options.max_new_tokens,
                  "most tokens to generate per prompt")
      ->capture_default_str()
      ->check(positive);
  add_sampling_flags(verb, flags.options.sampling);
  verb.add_option("--batch", flags.options.batch, "prompts per rank and forward pass")
      ->capture_default_str()
      ->check(positive);
  auto* chat =
      verb.add_flag("--chat", flags.chat,
                    "treat prompts as a user's messages: apply the chat template (default "
                    "for a model folder that has one, and for a run that learned conversations)");
  auto* chat_template = add_template_flag(verb, flags.chat_template);
  verb.add_flag("--raw", flags.raw,
                "use prompts unchanged, without a chat template (default for a run that learned no "
                "conversations)")
      ->excludes(chat)
      ->excludes(chat_template);
  verb.add_option("-n,--ranks", flags.ranks, "ranks to start on this host (default: 1)")
      ->check(within(1, 1024));
}

}  // namespace

void add_generate(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "generate", "Generate text: continue prompts from a file or from the terminal");
  auto flags = std::make_shared<GenerateFlags>();
  add_flags(*verb, *flags);
  verb->footer(
      "Without --prompt and --prompts it reads one prompt per line from standard input and answers "
      "each.");
  verb->callback([flags, &chosen] {
    take_model(flags->model);
    chosen = [flags] {
      if (const auto code = start_ranks(flags->ranks)) {
        return *code;
      }
      Rank rank(OnSignal::EndProcess);
      return rank.run([&] { return generate(rank, *flags); });
    };
  });
}

}  // namespace app
