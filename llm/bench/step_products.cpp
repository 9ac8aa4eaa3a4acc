#include "llm/bench/step_products.h"

#include <algorithm>

#include "llm/plan/model_flops.h"
#include "sherd/fully_shard.h"

namespace llm::bench {

std::vector<MatmulShape> step_products(const io::HfConfig& config, const BenchOptions& options) {
  const bool is_frozen = options.lora_rank > 0;
  const auto built = sherd::on_meta([&] { return io::build_model(config); });
  const std::int64_t rows = options.sequence * options.micro_batch;
  const std::int64_t supervised =
      options.micro_batch *
      std::min(options.sequence - 1, options.answers_only ? kAnswerTokens : options.sequence);
  std::vector<MatmulShape> shapes;
  const auto add = [&](MatmulShape shape) {
    for (MatmulShape& known : shapes) {
      if (known.rows == shape.rows && known.inputs == shape.inputs &&
          known.outputs == shape.outputs && known.batch == shape.batch &&
          known.is_frozen == shape.is_frozen) {
        known.count += shape.count;
        return;
      }
    }
    shapes.push_back(shape);
  };
  for (const at::Tensor& weight : plan::linear_weights(*built)) {
    add({rows, weight.size(1), weight.size(0), options.accumulation, 1, is_frozen});
  }
  const model::DecoderConfig& shape = config.shape;
  add({supervised, shape.hidden_size, shape.vocab_size, options.accumulation, 1, is_frozen});
  const auto windowed = static_cast<std::int64_t>(shape.layers_with_window.size());
  const auto add_attention = [&](std::int64_t layers, std::int64_t window) {
    if (layers > 0) {
      const std::int64_t keys = sherd::ops::seen_pairs(options.sequence, window) / options.sequence;
      add({options.sequence, shape.head_size, keys, 2 * layers * options.accumulation,
           shape.heads * options.micro_batch});
    }
  };
  add_attention(shape.layers - windowed, 0);
  add_attention(windowed, shape.window);
  return shapes;
}

}  // namespace llm::bench
