// What decides a run's numbers in a model folder, and what does not.

#include "llm/setup/model_identity.h"

#include <algorithm>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/setup/load_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::setup {
namespace {

namespace fs = std::filesystem;

const std::string kStories = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

fs::path stories_copy(const sherd::test::TempFolder& folder) {
  const fs::path copy = folder.path() / "model";
  fs::copy(kStories, copy);
  for (const auto& file : fs::directory_iterator(copy)) {
    fs::permissions(file.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  return copy;
}

void change(const fs::path& file, const std::function<void(nlohmann::ordered_json&)>& edit) {
  auto content = fs::exists(file) ? nlohmann::ordered_json::parse(sherd::test::bytes_of(file))
                                  : nlohmann::ordered_json::object();
  edit(content);
  std::ofstream(file) << content.dump();
}

Settings identity_of_folder(const fs::path& folder) {
  return model_identity(io::read_model_folder_config(folder.string()),
                        load_tokenizer(folder.string()));
}

// The names of values that are not those of the model that ships with the project.
std::vector<std::string> other_values(const fs::path& folder) {
  std::vector<std::string> names;
  const Settings plain = identity_of_folder(kStories), changed = identity_of_folder(folder);
  EXPECT_EQ(plain.size(), changed.size());
  for (std::size_t i = 0; i < std::min(plain.size(), changed.size()); ++i) {
    EXPECT_EQ(plain[i].first, changed[i].first);
    if (plain[i].second != changed[i].second) {
      names.push_back(changed[i].first);
    }
  }
  return names;
}

TEST(ModelIdentity, IsNeitherPathNorOrderNorFieldsThatChangeNothing) {
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  change(copy / "config.json", [](auto& config) {
    nlohmann::ordered_json reordered = {{"license", "MIT"}, {"use_cache", false}};
    for (auto field = config.rbegin(); field != config.rend(); ++field) {
      if (field.key() != "use_cache") {
        reordered[field.key()] = field.value();
      }
    }
    config = reordered;
  });
  EXPECT_THAT(other_values(copy), testing::IsEmpty());
}

TEST(ModelIdentity, NamesTheFieldThatDecidesTheComputation) {
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  change(copy / "config.json", [](auto& config) {
    config["rope_theta"] = 500000.0;
    config["rms_norm_eps"] = 1e-2;
  });
  EXPECT_THAT(other_values(copy),
              testing::ElementsAre("config.json: epsilon of norms", "config.json: rope_theta"));
}

// Under the names that notes of runs have kept so far.
TEST(ModelIdentity, NamesTheFieldsOfEachKindOfRope) {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const auto rope_of = [](const nlohmann::ordered_json& scaling) {
    const sherd::test::TempFolder folder;
    const fs::path copy = stories_copy(folder);
    change(copy / "config.json", [&](auto& config) { config["rope_scaling"] = scaling; });
    Fields fields;
    for (const auto& [name, value] : identity_of_folder(copy)) {
      if (name.starts_with("config.json: rope")) {
        fields.emplace_back(name.substr(std::string("config.json: ").size()), value);
      }
    }
    return fields;
  };
  EXPECT_EQ(rope_of(nullptr), Fields({{"rope_theta", "10000"}, {"rope_type", "default"}}));
  EXPECT_EQ(rope_of({{"rope_type", "linear"}, {"factor", 2.5}}),
            Fields({{"rope_theta", "10000"}, {"rope_type", "linear"}, {"rope factor", "2.5"}}));
  EXPECT_EQ(rope_of({{"rope_type", "llama3"},
                     {"factor", 8},
                     {"low_freq_factor", 1},
                     {"high_freq_factor", 4},
                     {"original_max_position_embeddings", 128}}),
            Fields({{"rope_theta", "10000"},
                    {"rope_type", "llama3"},
                    {"rope factor", "8"},
                    {"rope low_freq_factor", "1"},
                    {"rope high_freq_factor", "4"},
                    {"rope original_max_position_embeddings", "128"}}));
  EXPECT_EQ(rope_of({{"rope_type", "yarn"},
                     {"factor", 4},
                     {"attention_factor", 1.25},
                     {"original_max_position_embeddings", 128}}),
            Fields({{"rope_theta", "10000"},
                    {"rope_type", "yarn"},
                    {"rope factor", "4"},
                    {"rope beta_fast", "32"},
                    {"rope beta_slow", "1"},
                    {"rope truncate", "true"},
                    {"rope attention_factor", "1.25"},
                    {"rope original_max_position_embeddings", "128"}}));
}

TEST(ModelIdentity, HoldsTheEndTokenWhicheverFileNamesIt) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const sherd::test::TempFolder folder;
    const fs::path copy = stories_copy(folder);
    fs::remove(copy / "tokenizer_config.json");
    change(copy / name, [](auto& config) { config["eos_token"] = "<unk>"; });
    EXPECT_THAT(other_values(copy), testing::Contains(testing::HasSubstr("the end token"))) << name;
  }
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  change(copy / "generation_config.json", [](auto& config) {
    config["eos_token_id"] = std::vector{2, 7};
  });
  EXPECT_THAT(other_values(copy), testing::ElementsAre(testing::HasSubstr("the set of stop ids")));
}

TEST(ModelIdentity, HoldsTheContentOfTheTokenizer) {
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  std::ofstream(copy / "tokenizer.json", std::ios::app) << '\n';
  EXPECT_THAT(other_values(copy), testing::ElementsAre("tokenizer.json (SHA-256)"));
}

Settings weights_of(const fs::path& folder) {
  return weights_identity(sherd::SafetensorsFolder(folder.string()));
}

// Every tensor is sampled: a change of any of them shows.
TEST(WeightsIdentity, FindsAChangedTensorAndNoOtherPath) {
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  EXPECT_EQ(weights_of(copy), weights_of(kStories));
  const fs::path file = copy / "model.safetensors";
  const std::string bytes = sherd::test::bytes_of(file);
  const sherd::SafetensorsFile opened(file.string());
  const auto data = bytes.size() - opened.entries().back().end_byte;
  for (const auto& entry : opened.entries()) {
    std::string changed = bytes;
    for (auto byte = entry.begin_byte; byte < entry.end_byte; ++byte) {
      changed[data + byte] = static_cast<char>(changed[data + byte] ^ 1);
    }
    std::ofstream(file, std::ios::binary) << changed;
    EXPECT_NE(weights_of(copy), weights_of(kStories)) << entry.name;
  }
  EXPECT_THAT(weights_of(kStories), testing::ElementsAre(testing::Pair(
                                        "model.safetensors", testing::HasSubstr("tensors of"))));
}

// A copy that broke off and was overwritten half-way: the second half is another model's.
TEST(WeightsIdentity, FindsAHalfThatDiffers) {
  const sherd::test::TempFolder folder;
  const fs::path copy = stories_copy(folder);
  std::string bytes = sherd::test::bytes_of(copy / "model.safetensors");
  for (std::size_t i = bytes.size() / 2; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
  }
  std::ofstream(copy / "model.safetensors", std::ios::binary) << bytes;
  EXPECT_NE(weights_of(copy), weights_of(kStories));
}

}  // namespace
}  // namespace llm::setup
