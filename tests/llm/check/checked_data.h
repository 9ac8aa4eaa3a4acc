#pragma once
// The data of a small run, as `sherd check` is given it.

#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/inputs/run_data.h"
#include "llm/setup/load_data.h"
#include "llm/setup/load_model.h"
#include "llm/text/tokenizer.h"
#include "sherd/world.h"

namespace llm::check {

struct CheckedData {
  CheckedData() {
    config.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
    config.data.train = {{.path = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json"}};
    config.data.cache = "none";
    config.data.max_length = 128;
    config.train.global_batch = 8;
    config.train.micro_batch = 4;
    shape = setup::model_shape(config.model.path);
    tokenizer = setup::load_tokenizer(config.model.path);
    sherd::World world = sherd::World::alone();
    data =
        setup::load_run_data(config, *tokenizer, *shape, world, [](const std::string& /*line*/) {});
  }
  config::RunConfig config;
  std::optional<setup::ModelShape> shape;
  std::optional<text::Tokenizer> tokenizer;
  inputs::RunData data;
};

}  // namespace llm::check
