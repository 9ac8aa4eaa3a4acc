#include "llm/train/load_model.h"

#include "llm/io/import.h"
#include "llm/io/model_factory.h"
#include "sherd/checkpoint.h"

namespace llm::train {

sherd::Sharded<model::CausalLm> load_sharded(const std::string& folder, const sherd::World& world,
                                             const sherd::ShardOptions& options) {
  const io::HfConfig config = io::read_model_folder_config(folder);
  auto model = sherd::on_meta([&] { return io::build_model(config); });
  static_cast<void>(io::match_weights(*model, sherd::SafetensorsFolder(folder)));
  auto sharded = sherd::fully_shard(model, sherd::Mesh::shard(world), options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::load_safetensors(sharded, folder);
  return sharded;
}

}  // namespace llm::train
