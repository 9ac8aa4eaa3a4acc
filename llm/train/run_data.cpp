#include "llm/train/run_data.h"

#include <algorithm>

#include "llm/data/sampler.h"
#include "llm/data/token_cache.h"
#include "llm/train/agreement.h"
#include "llm/train/tokenize_once.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// The files as they were at the start.
struct Files {
  data::DataFile training;
  std::optional<data::DataFile> heldout;
  std::string tokenizer_sha256;
  std::string model_config_sha256;
};

Files read_files(const config::RunConfig& config, const text::Tokenizer& tokenizer) {
  Files files;
  files.training = data::read_data_file(config.data.train);
  if (!config.data.eval.empty()) {
    files.heldout = data::read_data_file(config.data.eval);
  }
  files.tokenizer_sha256 = data::tokenizer_digest(tokenizer);
  files.model_config_sha256 = data::read_data_file(tokenizer.folder() / "config.json").sha256;
  return files;
}

void require_same_files(const Files& files, sherd::World& world) {
  require_agreement(world, {{"the content of data.train (SHA-256)", files.training.sha256},
                            {"the content of data.eval (SHA-256)",
                             files.heldout ? files.heldout->sha256 : "not given"},
                            {"the model's tokenizer.json (SHA-256)", files.tokenizer_sha256},
                            {"the model's config.json (SHA-256)", files.model_config_sha256}});
}

}  // namespace

RunLength run_length(const config::RunConfig& config, std::int64_t samples) {
  const std::int64_t batch = config.train.global_batch;
  RunLength length{samples, (samples + batch - 1) / batch, config.train.max_steps};
  if (length.total_steps == 0) {
    length.total_steps = config.train.epochs * length.steps_per_epoch;
  }
  if (config.optim.warmup_steps > length.total_steps) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "optim.warmup_steps = " + std::to_string(config.optim.warmup_steps) +
                           " is longer than the run, which has " +
                           std::to_string(length.total_steps) + " steps (" +
                           std::to_string(samples) +
                           " samples, train.global_batch = " + std::to_string(batch) +
                           "): the learning rate would never be reached. "
                           "Set it to at most that, or train for longer.");
  }
  return length;
}

std::int64_t sample_length(std::int64_t asked, std::int64_t context) {
  return asked == 0 ? context : std::min(asked, context);
}

std::string length_remark(const std::string& key, std::int64_t asked, std::int64_t context) {
  return asked <= context ? ""
                          : key + " = " + std::to_string(asked) +
                                " is more than the model's context: " + std::to_string(context) +
                                " tokens are used";
}

RunData load_run_data(const config::RunConfig& config, const text::Tokenizer& tokenizer,
                      const model::CausalLmImpl& model, sherd::World& world,
                      const std::function<void(const std::string& line)>& say) {
  Files files;
  together(world, [&] {
    tokenizer.check_vocabulary(model.vocab_rows());
    files = read_files(config, tokenizer);
  });
  require_same_files(files, world);
  const std::int64_t context = model.context_length();
  if (const auto remark = length_remark("data.max_length", config.data.max_length, context);
      !remark.empty()) {
    say(remark);
  }
  std::optional<text::PromptEncoder> encoder;
  together(world, [&] {
    encoder.emplace(tokenizer, text::PromptLimits{sample_length(config.data.max_length, context),
                                                  config.data.max_answer_tokens});
  });
  const data::TokenCache cache(config.data.cache);
  RunData found;
  found.training =
      tokenize_once(world, cache, files.training, *encoder, config.data.train_limit, say);
  say("data: " + found.training.report.sentence());
  found.identity = {files.training.name, static_cast<std::int64_t>(found.training.samples.size()),
                    files.training.sha256, files.tokenizer_sha256};
  if (files.heldout) {
    data::TokenizedFile tokens =
        tokenize_once(world, cache, *files.heldout, *encoder, config.data.eval_limit, say);
    say("evaluation data: " + tokens.report.sentence());
    found.heldout = data::Dataset{data::questions_of(*files.heldout, config.data.eval_limit),
                                  std::move(tokens.samples), std::move(tokens.report)};
    found.heldout_sha256 = files.heldout->sha256;
  }
  together(world, [&] { found.length = run_length(config, found.identity.samples); });
  return found;
}

}  // namespace llm::train
