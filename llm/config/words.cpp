#include "llm/config/words.h"

namespace llm::config {

const std::vector<Word<Strategy>>& strategy_words() {
  static const std::vector<Word<Strategy>> words = {
      {"full_shard", Strategy::FullShard},
      {"shard_grad_op", Strategy::ShardGradOp},
      {"shard_optimizer", Strategy::ShardOptimizer},
      {"no_shard", Strategy::NoShard},
      {"hybrid_shard", Strategy::HybridShard},
      {"hybrid_shard_grad_op", Strategy::HybridShardGradOp}};
  return words;
}

const std::vector<Word<ParamDtype>>& param_dtype_words() {
  static const std::vector<Word<ParamDtype>> words = {{"auto", ParamDtype::Auto},
                                                      {"float32", ParamDtype::Float32},
                                                      {"bfloat16", ParamDtype::BFloat16},
                                                      {"float16", ParamDtype::Float16}};
  return words;
}

const std::vector<Word<MasterFormat>>& master_words() {
  static const std::vector<Word<MasterFormat>> words = {{"float32", MasterFormat::Float32},
                                                        {"split", MasterFormat::Split},
                                                        {"bfloat16", MasterFormat::BFloat16}};
  return words;
}

const std::vector<Word<AttentionKernel>>& attention_words() {
  static const std::vector<Word<AttentionKernel>> words = {{"auto", AttentionKernel::Auto},
                                                           {"cudnn", AttentionKernel::Cudnn},
                                                           {"flash", AttentionKernel::Flash},
                                                           {"plain", AttentionKernel::Plain}};
  return words;
}

}  // namespace llm::config
