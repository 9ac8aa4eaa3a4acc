#pragma once
// From the configuration to the options of what it configures: the one place where its words become
// the library's.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "llm/data/dataset.h"
#include "llm/data/subset.h"
#include "llm/model/causal_lm.h"
#include "llm/text/prompt.h"
#include "ops/attention_kernel.h"
#include "sherd/mesh.h"
#include "sherd/optim.h"
#include "sherd/options.h"

namespace llm::train {

[[nodiscard]] sherd::Strategy strategy_of(config::Strategy strategy);
/// By the names that the configuration has for them.
[[nodiscard]] std::map<std::string, sherd::Strategy> strategies_by_name();
[[nodiscard]] sherd::Master master_of(config::MasterFormat format);
/// The same.
[[nodiscard]] std::map<std::string, sherd::Master> masters_by_name();

/// Throws sherd::Error(Usage) for a `parallel.shard_size` that does not divide the ranks.
[[nodiscard]] sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world);

/// Over how many ranks the state is cut: masters, moments and sums of gradients.
[[nodiscard]] int state_shards(const config::RunConfig& config, const sherd::World& world);

[[nodiscard]] c10::ScalarType dtype_of(config::ParamDtype dtype);
[[nodiscard]] c10::ScalarType dtype_of(config::MomentsDtype dtype);

[[nodiscard]] sherd::ShardOptions shard_options(const config::RunConfig& config);
/// What ranks exchange over: such that share memory cannot offload parameters.
[[nodiscard]] sherd::Transport transport_of(const sherd::Offload& offload);
[[nodiscard]] sherd::ReduceScatter reduce_scatter_of(config::ReduceScatter way);
[[nodiscard]] sherd::ops::AttentionKernel attention_of(config::AttentionKernel kernel);
/// By the names that the configuration has for them.
[[nodiscard]] std::map<std::string, sherd::ops::AttentionKernel> attention_kernels_by_name();
[[nodiscard]] sherd::AdamWOptions adamw_options(const config::OptimSection& optim);
/// Norms and biases, which is what has one dimension, in a group without weight decay; no group
/// where they are decayed like the rest. `shapes` names all parameters.
[[nodiscard]] std::vector<sherd::ParamGroup> adamw_groups(const config::OptimSection& optim,
                                                          const model::CausalLmImpl& shapes);
[[nodiscard]] sherd::AdamWMode adamw_mode(const config::PrecisionSection& precision);
/// Whether a GradScaler is used.
[[nodiscard]] bool scales_loss(const config::PrecisionSection& precision);

/// The questions of a data file that are used.
[[nodiscard]] data::Limit limit_of(const config::DataSet& set, const config::TrainSection& train);

/// How a file of `data` is read.
[[nodiscard]] data::FileReading reading_of(const config::DataSet& set,
                                           const config::DataSection& data);
/// The same of one to train on, without the samples that are kept from training.
[[nodiscard]] data::FileReading training_reading_of(const config::DataSet& set,
                                                    const config::DataSection& data);

/// What encodes the samples of `data`, conversations by the chat template that it names, of which
/// the model is that of the tokenizer's folder; by the one that a run has learned where `recorded`,
/// RunNote::chat_template, is not empty. Throws sherd::Error as text::PromptEncoder, and for a
/// named template that cannot be read.
[[nodiscard]] text::PromptEncoder prompt_encoder_of(const config::DataSection& data,
                                                    const text::Tokenizer& tokenizer,
                                                    const text::PromptLimits& limits,
                                                    const std::string& recorded = "");

/// The text of the chat template by which the conversations of `data` are encoded. Throws
/// sherd::Error as prompt_encoder_of(), and BadData for a model without a chat template.
[[nodiscard]] std::string chat_template_text(const config::DataSection& data,
                                             const text::Tokenizer& tokenizer);
/// What a run has encoded its conversations with. `recorded` is RunNote::chat_template, not empty.
/// Throws sherd::Error for a template that cannot be read.
[[nodiscard]] std::shared_ptr<const text::ChatEncoder> learned_chat_of(
    const config::DataSection& data, const text::Tokenizer& tokenizer, const std::string& recorded);

/// How a step's samples are dealt; by one each where the micro-batch is still to be chosen. Throws
/// sherd::Error(Usage) if they do not divide.
[[nodiscard]] data::BatchShape batch_shape(const config::TrainSection& train, int world_size);

}  // namespace llm::train
