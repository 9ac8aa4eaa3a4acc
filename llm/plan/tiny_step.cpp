#include "llm/plan/tiny_step.h"

#include <ATen/ops/zeros.h>

#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "sherd/optim.h"

namespace llm::plan {

namespace {

constexpr std::int64_t kTokens = 96;

io::HfConfig narrow(io::HfConfig config) {
  model::DecoderConfig& shape = config.shape;
  shape.layers = 1;
  shape.heads = 2;
  shape.key_heads = 2;
  shape.hidden_size = shape.heads * shape.head_size;
  shape.feed_forward_size = 4 * shape.hidden_size;
  shape.vocab_size = 512;
  return config;
}

}  // namespace

setup::ResidentMemory program_memory(const io::HfConfig& like, const sherd::ShardOptions& options,
                                     int local_ranks) {
  {
    sherd::ShardOptions alone = options;
    alone.strategy = sherd::Strategy::FullShard;
    alone.reshard_after_forward_size = 0;
    alone.offload = {};
    auto model =
        setup::random_sharded(narrow(like), sherd::Mesh::shard(sherd::World::alone()), alone, 1);
    sherd::AdamW optimizer(model, {});
    const at::Tensor ids = at::zeros({kTokens}, at::kLong);
    setup::loss_sum(model, {ids, ids, sherd::ops::Documents({0, kTokens})}).backward();
    static_cast<void>(sherd::clip_grad_norm(model, 1.0));
    optimizer.step();
  }
  return setup::resident_memory(local_ranks);
}

}  // namespace llm::plan
