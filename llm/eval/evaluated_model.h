#pragma once
// The model that `sherd eval` evaluates: a model folder, or what a run has learned.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/load_model.h"
#include "llm/setup/run_note.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/records.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

/// A model and how it was trained: prompts are cut, and answers written, as in its run.
struct EvaluatedModel {
  std::string model_folder;  ///< config and tokenizer; the weights too, without a checkpoint
  io::IgnoredFields ignored_fields = {{}, families::IgnoreBy::Flag};  ///< those of the run
  std::string checkpoint;  ///< empty: the model folder's weights
  /// The run's, or that of a PEFT folder, whose values `adapter.path` holds where there is no
  /// checkpoint.
  config::AdapterSection adapter = {};
  text::Columns columns = {};  ///< of the run's data: evaluated first, else trained on
  std::int64_t max_length = 0;
  std::int64_t max_answer_tokens = 32;
  c10::ScalarType param_dtype = c10::kFloat;
  setup::ModelValues model_values =
      {};  ///< of the model folder when the run began; empty: not known
  std::optional<config::RunConfig> run = std::nullopt;  ///< the run's, where it is one
  setup::BaseWeights base = {};        ///< RunNote::base; empty: the checkpoint has all parameters
  setup::ReferenceKey reference = {};  ///< RunNote::reference
  std::string chat_template = {};  ///< RunNote::chat_template; empty: it learned no conversations
  /// Of a PEFT adapter that has its own tokenizer, and with it its chat template and stop tokens:
  /// the adapter's folder; else empty.
  std::string tokenizer_folder = {};
  std::vector<std::string> notices = {};  ///< newer checkpoints that are damaged: to be printed
};

/// `path` is a Hugging Face folder, a run's output folder, a checkpoint's folder or a PEFT
/// adapter's; `which` chooses among the checkpoints of a run (chosen_checkpoint()), empty: the
/// newest intact one; `base` is the folder of an adapter's base model, empty: what its
/// adapter_config.json names. Not collective. Throws sherd::Error: InputMissing, BadData; Usage for
/// a choice or a base where there is none to choose.
[[nodiscard]] EvaluatedModel find_evaluated(const std::string& path, const std::string& which = "",
                                            const std::string& base = "");

/// The shape of the model, with its adapter. Not collective. Throws sherd::Error as
/// setup::model_shape().
[[nodiscard]] setup::ModelShape shape_of(const EvaluatedModel& source);

/// The tokenizer of the adapter if it has its own, else that of the model folder. Not collective.
/// Throws sherd::Error as setup::load_tokenizer().
[[nodiscard]] text::Tokenizer tokenizer_of(const EvaluatedModel& source);
/// The ids that stop generation without a chat template: those of the tokenizer, and of an adapter
/// with its own tokenizer those of its base too. Throws sherd::Error as Tokenizer::from_folder().
[[nodiscard]] std::vector<text::TokenId> stop_ids_of(const EvaluatedModel& source,
                                                     const text::Tokenizer& tokenizer);

/// Checks that the model folder of a run still says what it said when the run began; anything of
/// what is no run. Not collective. Throws sherd::Error(BadData), naming what differs with both
/// values.
void require_same_model(const EvaluatedModel& source, const setup::ModelShape& shape,
                        const text::Tokenizer& tokenizer);

/// How a model converses.
struct EvaluatedChat {
  std::shared_ptr<const text::ChatEncoder> encoder;  ///< null: there is no chat template
  bool was_learned = false;             ///< by the run: prompts are those of its training
  std::vector<text::TokenId> stop_ids;  ///< what ends an answer
};

/// Of a run that learned conversations its template, arguments and date, and its stop token besides
/// the tokenizer's; else the template in the tokenizer's folder, rendered at the present time.
/// `choice`, the value of --template, names another one unless it is empty. Not collective. Throws
/// sherd::Error as text::chat_template_of() does.
[[nodiscard]] EvaluatedChat chat_of(const EvaluatedModel& source, const text::Tokenizer& tokenizer,
                                    const std::string& choice = "");

/// Shards `shape`, that of shape_of(), and loads its values. Each rank reads its own
/// slices, in options.precision.param_dtype. The model cannot be trained: its parameters are frozen
/// and have no fp32 masters. A checkpoint of a part of the parameters is read over the weights of
/// the model folder, which must be its base. Collective. Memory: the shards, and that of
/// sherd::load_checkpoint() or sherd::load_safetensors(). Throws sherd::Error as these do, and as
/// io::match_weights(), setup::require_base(), require_same_adapter() and load_peft_adapter().
[[nodiscard]] sherd::Sharded<model::CausalLm> load_evaluated(const EvaluatedModel& source,
                                                             const setup::ModelShape& shape,
                                                             const sherd::Mesh& mesh,
                                                             const sherd::ShardOptions& options);

/// The model of a run before its first step, which is the reference of its preference pairs, with
/// adapter and quantised weights as in training. `shape`: that of shape_of(). It cannot be trained.
/// Collective. Memory: the shards. Throws sherd::Error on every rank: BadData if model folder or
/// adapter.path have other weights than when the run began, naming both digests; as
/// setup::load_model().
[[nodiscard]] sherd::Sharded<model::CausalLm> load_start(const EvaluatedModel& source,
                                                         const setup::ModelShape& shape,
                                                         const sherd::World& world,
                                                         const sherd::ShardOptions& options);

}  // namespace llm::eval
