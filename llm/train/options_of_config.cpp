#include "llm/train/options_of_config.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/chosen_template.h"
#include "sherd/error.h"

namespace llm::train {

sherd::Strategy strategy_of(config::Strategy strategy) {
  switch (strategy) {
    case config::Strategy::FullShard:
      return sherd::Strategy::FullShard;
    case config::Strategy::ShardGradOp:
      return sherd::Strategy::ShardGradOp;
    case config::Strategy::NoShard:
      return sherd::Strategy::NoShard;
    case config::Strategy::HybridShard:
      return sherd::Strategy::HybridShard;
    case config::Strategy::HybridShardGradOp:
      return sherd::Strategy::HybridShardGradOp;
  }
  return sherd::Strategy::FullShard;
}

std::map<std::string, sherd::Strategy> strategies_by_name() {
  std::map<std::string, sherd::Strategy> named;
  for (const auto& [word, strategy] : config::strategy_words()) {
    named[word] = strategy_of(strategy);
  }
  return named;
}

sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world) {
  return sherd::Mesh::of_strategy(world, strategy_of(config.parallel.strategy),
                                  config.parallel.shard_size);
}

int state_shards(const config::RunConfig& config, const sherd::World& world) {
  return config.parallel.strategy == config::Strategy::NoShard
             ? 1
             : mesh_of(config, world).shard_size();
}

c10::ScalarType dtype_of(config::ParamDtype dtype) {
  switch (dtype) {
    case config::ParamDtype::Auto:
    case config::ParamDtype::Float32:
      return c10::kFloat;
    case config::ParamDtype::BFloat16:
      return c10::kBFloat16;
    case config::ParamDtype::Float16:
      return c10::kHalf;
  }
  return c10::kFloat;
}

c10::ScalarType dtype_of(config::MomentsDtype dtype) {
  return dtype == config::MomentsDtype::Float32 ? c10::kFloat : c10::kBFloat16;
}

sherd::Master master_of(config::MasterFormat format) {
  switch (format) {
    case config::MasterFormat::Float32:
      return sherd::Master::Float32;
    case config::MasterFormat::Split:
      return sherd::Master::Split;
    case config::MasterFormat::BFloat16:
      return sherd::Master::BFloat16;
  }
  return sherd::Master::Float32;
}

std::map<std::string, sherd::Master> masters_by_name() {
  std::map<std::string, sherd::Master> named;
  for (const auto& [word, format] : config::master_words()) {
    named[word] = master_of(format);
  }
  return named;
}

sherd::ShardOptions shard_options(const config::RunConfig& config) {
  sherd::ShardOptions options;
  options.strategy = strategy_of(config.parallel.strategy);
  options.reshard_after_forward_size = config.parallel.reshard_after_forward_size.value_or(0);
  options.units = sherd::unit_policy::every_unit(
      {.checkpoint_activations = config.memory.activation_checkpointing});
  options.prefetch_depth = config.parallel.prefetch_depth;
  options.precision.param_dtype = dtype_of(config.precision.param_dtype);
  options.precision.master = master_of(config.precision.master);
  options.precision.reduce_dtype =
      config.precision.reduce_dtype == config::ReduceDtype::BFloat16 ? c10::kBFloat16 : c10::kFloat;
  options.offload = {
      config.memory.offload.optimizer_folder,    config.memory.offload.gradient_folder,
      config.memory.offload.parameter_folder,    config.memory.offload.optimizer_on_host,
      config.memory.offload.activations_on_host, config.memory.offload.parameters_on_host,
      config.memory.offload.gradients_on_host};
  return options;
}

sherd::Transport transport_of(const sherd::Offload& offload) {
  return offload.parameter_folder.empty() ? sherd::Transport::Automatic
                                          : sherd::Transport::ProcessGroups;
}

sherd::ReduceScatter reduce_scatter_of(config::ReduceScatter way) {
  return way == config::ReduceScatter::Native ? sherd::ReduceScatter::Native
                                              : sherd::ReduceScatter::RankOrder;
}

sherd::ops::AttentionKernel attention_of(config::AttentionKernel kernel) {
  switch (kernel) {
    case config::AttentionKernel::Auto:
      return sherd::ops::AttentionKernel::Auto;
    case config::AttentionKernel::Cudnn:
      return sherd::ops::AttentionKernel::Cudnn;
    case config::AttentionKernel::Flash:
      return sherd::ops::AttentionKernel::Flash;
    case config::AttentionKernel::Plain:
      return sherd::ops::AttentionKernel::Plain;
  }
  return sherd::ops::AttentionKernel::Auto;
}

std::map<std::string, sherd::ops::AttentionKernel> attention_kernels_by_name() {
  std::map<std::string, sherd::ops::AttentionKernel> named;
  for (const auto& [word, kernel] : config::attention_words()) {
    named[word] = attention_of(kernel);
  }
  return named;
}

sherd::AdamWOptions adamw_options(const config::OptimSection& optim) {
  return {optim.lr, {optim.betas[0], optim.betas[1]}, optim.eps, optim.weight_decay};
}

std::vector<sherd::ParamGroup> adamw_groups(const config::OptimSection& optim,
                                            const model::CausalLmImpl& shapes) {
  if (optim.weight_decay_on_norms_and_biases || optim.weight_decay == 0) {
    return {};
  }
  std::set<std::string> vectors;
  for (const auto& parameter : shapes.named_parameters()) {
    if (parameter.value().dim() <= 1) {
      vectors.insert(parameter.key());
    }
  }
  sherd::AdamWOptions without_decay = adamw_options(optim);
  without_decay.weight_decay = 0;
  const auto contains = [vectors = std::move(vectors)](const std::string& name) {
    return vectors.contains(name);
  };
  return {{contains, without_decay}};
}

sherd::AdamWMode adamw_mode(const config::PrecisionSection& precision) {
  return {.moments_dtype = dtype_of(precision.moments)};
}

bool scales_loss(const config::PrecisionSection& precision) {
  return precision.param_dtype == config::ParamDtype::Float16 &&
         precision.scaler == config::Scaler::Auto;
}

data::Limit limit_of(const config::DataSet& set, const config::TrainSection& train) {
  return {set.limit.value_or(0), set.limit_order == config::LimitOrder::Random,
          static_cast<std::uint64_t>(train.seed)};
}

data::FileReading reading_of(const config::DataSet& set, const config::DataSection& data) {
  return {set.format,
          {set.columns.prompt, set.columns.completion, set.columns.messages, set.columns.text},
          {data.on_bad_sample == config::OnBadSample::Skip, data.max_bad_samples},
          set.held_out ? data::Side::HeldOut : data::Side::All,
          data.held_out};
}

data::FileReading training_reading_of(const config::DataSet& set, const config::DataSection& data) {
  data::FileReading reading = reading_of(set, data);
  reading.side = data.held_out > 0 ? data::Side::Training : data::Side::All;
  return reading;
}

namespace {

// "false" is a boolean, "abc" a text.
nlohmann::ordered_json arguments_of(const std::vector<std::string>& given) {
  auto arguments = nlohmann::ordered_json::object();
  for (const std::string& argument : given) {
    const std::size_t equals = argument.find('=');
    const std::string value = argument.substr(equals + 1);
    auto parsed = nlohmann::ordered_json::parse(value, nullptr, false);
    arguments[argument.substr(0, equals)] =
        parsed.is_discarded() ? nlohmann::ordered_json(value) : std::move(parsed);
  }
  return arguments;
}

text::ChatOptions chat_options(const config::DataSection& data) {
  const auto supervised = data.supervise == config::Supervise::All    ? text::Supervised::All
                          : data.supervise == config::Supervise::Last ? text::Supervised::Last
                                                                      : text::Supervised::Template;
  return {supervised, data.on_template_mismatch == config::OnTemplateMismatch::AsRendered,
          data.special_tokens_in_text == config::SpecialTokensInText::AsText,
          arguments_of(data.template_arguments), data.date + "T00:00:00"};
}

}  // namespace

text::PromptEncoder prompt_encoder_of(const config::DataSection& data,
                                      const text::Tokenizer& tokenizer,
                                      const text::PromptLimits& limits,
                                      const std::string& recorded) {
  text::PromptOptions options;
  if (data.separator != "auto") {
    options.separator = data.separator;
  }
  if (!recorded.empty()) {
    options.chat = learned_chat_of(data, tokenizer, recorded);
    return {tokenizer, limits, std::move(options)};
  }
  const bool is_own = data.chat_template == "model";
  try {
    if (auto chat = text::chat_template_of(data.chat_template, tokenizer.folder())) {
      options.chat =
          std::make_shared<text::ChatEncoder>(tokenizer, std::move(*chat), chat_options(data));
    } else {
      options.no_chat = text::advice_on_chat_template(tokenizer.folder());
    }
  } catch (const sherd::Error& error) {
    if (!is_own) {
      throw;
    }
    options.no_chat = error.what();  // refused only where there are conversations
  }
  return {tokenizer, limits, std::move(options)};
}

std::string chat_template_text(const config::DataSection& data, const text::Tokenizer& tokenizer) {
  const text::PromptLimits any{.max_length_tokens = 2, .max_answer_tokens = 1};
  return prompt_encoder_of(data, tokenizer, any).chat().chat_template().source();
}

std::shared_ptr<const text::ChatEncoder> learned_chat_of(const config::DataSection& data,
                                                         const text::Tokenizer& tokenizer,
                                                         const std::string& recorded) {
  const std::string name =
      data.chat_template == "model" ? "the run's chat template" : data.chat_template;
  return std::make_shared<text::ChatEncoder>(
      tokenizer,
      text::ChatTemplate::from_text(name, recorded,
                                    text::ChatTemplate::tokens_of_folder(tokenizer.folder())),
      chat_options(data));
}

data::BatchShape batch_shape(const config::TrainSection& train, int world_size) {
  const data::BatchShape shape{train.global_batch, train.micro_batch.value_or(1), world_size};
  shape.validate();
  return shape;
}

}  // namespace llm::train
