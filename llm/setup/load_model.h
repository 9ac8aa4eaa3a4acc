#pragma once
// A model folder as a sharded model.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/io/hf_config.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/run_module.h"
#include "llm/text/tokenizer.h"
#include "sherd/fully_shard.h"

namespace llm::setup {

/// The tokenizer of a Hugging Face folder. Throws sherd::Error: as io::require_model_folder();
/// BadData.
[[nodiscard]] text::Tokenizer load_tokenizer(const std::string& folder);

/// The model of a run in shapes only, built on meta: what can be known of it before it takes
/// memory.
struct ModelShape {
  io::HfConfig config;
  model::CausalLm shapes;
  std::int64_t parameters = 0;  ///< elements, a tied one counted once; with those of an adapter
  std::int64_t trained = 0;     ///< of them, those that a run trains
};

/// Reads config.json, builds on meta and prepares the module. Throws sherd::Error as llm::io does,
/// and as `prepare`.
[[nodiscard]] ModelShape model_shape(const std::string& folder,
                                     const io::IgnoredFields& ignored = {},
                                     const PrepareModule& prepare = {});
/// The same of a run, with its adapter.
[[nodiscard]] ModelShape model_shape(const config::RunConfig& config);

/// For people: which factors rotary positions take in a run whose texts have at most `max_length`
/// tokens (0: the model's context). Empty where the texts' length does not matter.
[[nodiscard]] std::string rope_remark(const ModelShape& shape, std::int64_t max_length);

/// First values of a run's adapter. OfRun: those in adapter.path, or fresh ones. Unset: a
/// checkpoint will set them, and the folder in adapter.path need not be there.
enum class AdapterValues { OfRun, Unset };

/// The run's model in shards: the folder's weights, or random ones; and its adapter, from
/// adapter.path or fresh. Collective. Memory: the shards. Throws sherd::Error as `load_sharded` and
/// adapters::require_peft_tensors().
[[nodiscard]] sherd::Sharded<model::CausalLm> load_model(
    const config::RunConfig& config, const ModelShape& shape, const sherd::World& world,
    AdapterValues adapter = AdapterValues::OfRun);

/// The same of a model that is only evaluated: every parameter is frozen and has no fp32 master.
/// `options`: the precision; the run's strategy and offloading have no part in it. Collective.
/// Memory: the shards. Throws as load_model().
[[nodiscard]] sherd::Sharded<model::CausalLm> load_frozen_model(const config::RunConfig& config,
                                                                const ModelShape& shape,
                                                                const sherd::World& world,
                                                                const sherd::ShardOptions& options);

/// load_model() in shards whose values are not set, for a checkpoint to fill: the folder's weights
/// are not read and need not be there. Collective. Memory: the shards.
[[nodiscard]] sherd::Sharded<model::CausalLm> model_to_fill(const config::RunConfig& config,
                                                            const ModelShape& shape,
                                                            const sherd::World& world);

/// Builds the model of a Hugging Face folder on meta, prepares and shards it, and reads each rank's
/// slices of the weights. Adapters have no values yet. Gradients are summed, not averaged: the
/// trainer divides its loss by the global number of tokens. Collective. Memory: the shards. Throws
/// sherd::Error as llm::io does.
[[nodiscard]] sherd::Sharded<model::CausalLm> load_sharded(const std::string& folder,
                                                           const sherd::Mesh& mesh,
                                                           const sherd::ShardOptions& options,
                                                           const io::IgnoredFields& ignored = {},
                                                           const PrepareModule& prepare = {});

/// Compares what the adapter_config.json of each rank decides, before modules are made by it.
/// Collective. Throws sherd::Error(RanksDisagree), naming what differs as a key of [adapter].
void require_same_adapter(sherd::World world, const config::AdapterSection& adapter);

/// Reads the adapter in adapter.path into a model that is adapted (adapters::adapt()), after
/// comparing its tensors on all ranks. Collective. Throws sherd::Error: as
/// adapters::require_peft_tensors() and adapters::load_adapter(); RanksDisagree.
void load_peft_adapter(sherd::Sharded<model::CausalLm>& model,
                       const config::AdapterSection& adapter);

/// As load_sharded() for random weights, a function of the seed, each parameter's name and its
/// shape, and so the same on any world size: matrices from N(0, initializer_range), biases 0,
/// norms 1. Collective. Memory: the shards.
[[nodiscard]] sherd::Sharded<model::CausalLm> random_sharded(const io::HfConfig& config,
                                                             const sherd::Mesh& mesh,
                                                             const sherd::ShardOptions& options,
                                                             std::uint64_t seed,
                                                             const PrepareModule& prepare = {});

/// How a run asks for the chunks that its loss takes the logits in.
struct LossChunk {
  std::optional<std::int64_t> tokens = std::nullopt;  ///< rows of a chunk; comes before `bytes`
  std::optional<std::int64_t> bytes = std::nullopt;   ///< that a chunk's logits take at most
};
/// The rows of a chunk of logits, each of `row_bytes`. Returns `asked.tokens` if it is given. Else
/// the most rows that fit `asked.bytes`, at least 1 and at most 8192: there, reading the head's
/// weight and adding up its gradient once per chunk takes 6 % of a chunk's products on an H200.
/// Without `asked.bytes`, a GPU gives 1/32 of its memory, and a CPU (`gpu_memory_bytes`
/// is 0) takes kLossChunkTokens rows.
[[nodiscard]] std::int64_t loss_chunk_tokens(const LossChunk& asked, std::int64_t row_bytes,
                                             std::int64_t gpu_memory_bytes);

/// Cuts the loss's logits into chunks as `asked`, or as the rank's device wants it
/// (loss_chunk_tokens). `options`: the model's. Not collective.
void set_loss_chunk(sherd::Sharded<model::CausalLm>& model, const sherd::ShardOptions& options,
                    const LossChunk& asked = {});

}  // namespace llm::setup
