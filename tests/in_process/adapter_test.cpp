// `[adapter]`: runs that train an adapter, and what is made of them.

#include <algorithm>
#include <numeric>

#include "llm/gguf/changes.h"
#include "llm/gguf/gguf_file.h"
#include "sherd/safetensors.h"
#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const Arguments kLora = {"--adapter.kind", "lora", "--adapter.rank", "4", "--optim.lr", "1e-2"};

Arguments lora_run(const fs::path& output, const std::string& steps = "6") {
  return train(output, steps) + kLora;
}

double loss_of(const Arguments& model) {
  const Ended ended = expect_code(
      0, Arguments{"eval"} + model +
             Arguments{"--data", kQuestions, "--loss-only", "--json", "--max-length", "128"});
  return json::parse(ended.out).at("loss").get<double>();
}

// Without clipping the bits are the same, each rank having one micro-batch.
TEST(Adapter, LearnsTheSameOnAnyNumberOfRanks) {
  const TempFolder folder;
  const auto losses = [&](int ranks, const char* micro_batch, const char* clip) {
    const fs::path output =
        folder.path() / ("run-" + std::to_string(ranks) + "-" + micro_batch + clip);
    expect_code(0, on_ranks(ranks, lora_run(output, "8")) +
                       Arguments{"--train.micro_batch", micro_batch, "--optim.clip_grad_norm", clip,
                                 "--adapter.dropout", "0.1"});
    return column(output, "loss");
  };
  const auto two = losses(1, "6", "none"), three = losses(1, "4", "none");
  EXPECT_LT(two.back(), 0.95 * two.front());
  EXPECT_EQ(losses(2, "6", "none"), two);
  EXPECT_EQ(losses(3, "4", "none"), three);
  const auto clipped = losses(1, "12", "0.5");
  for (const auto& [ranks, micro_batch] : {std::pair{2, "3"}, {3, "2"}}) {
    const auto other = losses(ranks, micro_batch, "0.5");
    ASSERT_EQ(other.size(), clipped.size());
    for (std::size_t step = 0; step < clipped.size(); ++step) {
      EXPECT_NEAR(other[step], clipped[step], 1e-6 * clipped[step]) << ranks << " " << step;
    }
  }
}

class AdapterRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    output_ = folder_->path() / "run";
    out_ = expect_code(0, on_ranks(2, lora_run(output_)) +
                              Arguments{"--train.micro_batch", "6", "--checkpoint.every", "2 steps",
                                        "--checkpoint.keep", "9", "--checkpoint.export", "end"})
               .out;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static inline std::unique_ptr<TempFolder> folder_;  // NOLINT
  static inline fs::path output_;                     // NOLINT
  static inline std::string out_;                     // NOLINT
};

TEST_F(AdapterRun, SaysWhatItTrains) {
  EXPECT_THAT(out_,
              HasSubstr("adapter: LoRA on 35 linear maps, rank 4, scale 4; trains 23120 of "));
}

TEST_F(AdapterRun, GoesOnFromItsCheckpoint) {
  const fs::path other = folder_->path() / "other";
  expect_code(0, on_ranks(2, lora_run(other, "6")) +
                     Arguments{"--train.micro_batch", "6", "--checkpoint.resume",
                               output_ / "checkpoints/step-00000004"});
  const auto all = column(output_, "loss");
  EXPECT_EQ(column(other, "loss", 5), std::vector<double>(all.begin() + 4, all.end()));
  const Ended changed = expect_code(
      64, train(other, "8") + Arguments{"--adapter.kind", "lora", "--adapter.rank", "8"});
  EXPECT_THAT(changed.err, HasSubstr("adapter.rank was 4 and is now 8"));
}

// The run, the PEFT folder that it left, and the model that both make compute the same.
TEST_F(AdapterRun, LeavesAFolderOfPeft) {
  const fs::path adapter = output_ / "export", merged = folder_->path() / "merged";
  EXPECT_TRUE(fs::exists(adapter / "adapter_config.json"));
  EXPECT_FALSE(fs::exists(adapter / "config.json"));
  EXPECT_FALSE(fs::exists(adapter / "model.safetensors"));
  const sherd::SafetensorsFile file((adapter / "adapter_model.safetensors").string());
  EXPECT_EQ(file.entries().size(), 70U);
  EXPECT_NE(file.find("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const double base = loss_of({kModel}), run = loss_of({output_});
  EXPECT_LT(run, 0.98 * base);
  EXPECT_EQ(loss_of({adapter}), run);
  EXPECT_THAT(expect_code(0, {"export", output_, "--merged", "--out", merged}).out,
              HasSubstr("exported "));
  EXPECT_NEAR(loss_of({merged}), run, 2e-6 * run);
  EXPECT_EQ(json::parse(read_file(adapter / "adapter_config.json")).at("base_model_name_or_path"),
            fs::absolute(kModel).string());
}

TEST_F(AdapterRun, GeneratesFromEachFormAlike) {
  const auto answer = [&](const Arguments& model) {
    return expect_code(0, Arguments{"generate"} + model +
                              Arguments{"--prompt", "Tom and Lily", "--max-new-tokens", "12"})
        .out;
  };
  const std::string run = answer({output_});
  EXPECT_EQ(answer({output_ / "export"}), run);
  EXPECT_EQ(answer({output_ / "export", "--base", kModel}), run);
  EXPECT_THAT(expect_code(64, {"generate", kModel, "--base", kModel, "--prompt", "x"}).err,
              HasSubstr("names the base model of a PEFT adapter's folder"));
  const fs::path lost = folder_->path() / "lost";
  fs::copy(output_ / "export", lost);
  json config = json::parse(read_file(lost / "adapter_config.json"));
  config["base_model_name_or_path"] = "/no/such/model";
  std::ofstream(lost / "adapter_config.json") << config.dump();
  EXPECT_THAT(expect_code(66, {"generate", lost, "--prompt", "x"}).err,
              HasSubstr("'/no/such/model' of the adapter in"));
  EXPECT_EQ(answer({lost, "--base", kModel}), run);
}

// A tokenizer of the adapter's own does not take away what ends the base's answers.
TEST_F(AdapterRun, StopsWhereItsBaseDoes) {
  const fs::path base = folder_->path() / "talker", adapter = folder_->path() / "own-tokenizer";
  fs::copy(kModel, base);
  fs::copy(output_ / "export", adapter);
  const auto answers = [&] {
    const fs::path out = folder_->path() / "answers";
    expect_code(0, {"eval", adapter, "--base", base, "--data", kQuestions, "--predictions", out,
                    "--max-length", "128"});
    return json::parse(read_file(out / "predictions.json"));
  };
  const auto is_empty = [](const json& answer) { return answer == ""; };
  const json learned = answers();
  EXPECT_FALSE(std::any_of(learned.begin(), learned.end(), is_empty));
  std::vector<int> every_token(512);
  std::iota(every_token.begin(), every_token.end(), 0);
  std::ofstream(base / "generation_config.json") << json{{"eos_token_id", every_token}}.dump();
  const json stopped = answers();
  EXPECT_TRUE(std::all_of(stopped.begin(), stopped.end(), is_empty));
}

// llama.cpp scales by alpha ÷ rank, and has other rows in q and k of a Llama.
TEST_F(AdapterRun, IsWrittenAsGguf) {
  const fs::path file = folder_->path() / "lora.gguf", merged = folder_->path() / "merged.gguf";
  expect_code(0, {"export", output_, "--gguf", file});
  const llm::gguf::GgufFile read(file);
  EXPECT_EQ(read.text("general.type"), "adapter");
  EXPECT_EQ(read.text("general.architecture"), "llama");
  EXPECT_EQ(read.text("adapter.type"), "lora");
  EXPECT_EQ(read.number("adapter.lora.alpha"), 16);
  EXPECT_EQ(read.tensors().size(), 70U);
  const sherd::SafetensorsFile peft((output_ / "export/adapter_model.safetensors").string());
  const auto theirs = [&](const std::string& name) {
    return peft.read(*peft.find("base_model.model.model.layers.2." + name + ".weight"));
  };
  const auto ours = [&](const std::string& name) {
    for (const llm::gguf::TensorInfo& tensor : read.tensors()) {
      if (tensor.name == "blk.2." + name) {
        return read.read(tensor);
      }
    }
    return at::Tensor();
  };
  EXPECT_TRUE(ours("attn_k.weight.lora_a").equal(theirs("self_attn.k_proj.lora_A")));
  EXPECT_TRUE(ours("ffn_down.weight.lora_b").equal(theirs("mlp.down_proj.lora_B")));
  EXPECT_TRUE(llm::gguf::from_gguf(ours("attn_k.weight.lora_b"), llm::gguf::Change::KeyRows,
                                   {.queries = 8, .keys = 4})
                  .equal(theirs("self_attn.k_proj.lora_B")));
  EXPECT_THAT(expect_code(64, {"export", output_, "--gguf", merged, "--dtype", "q8_0"}).err,
              HasSubstr("--dtype q8_0 is for models"));
  expect_code(0, {"export", output_, "--merged", "--gguf", merged, "--dtype", "q8_0"});
  EXPECT_EQ(llm::gguf::GgufFile(merged).text("general.type"), "model");
}

// A run that starts from the folder has its rank, whatever the default says, and its loss.
TEST_F(AdapterRun, StartsFromAFolderOfPeft) {
  const fs::path other = folder_->path() / "continued";
  const Arguments from = {"--adapter.kind", "lora", "--adapter.path", output_ / "export"};
  const Ended ended = expect_code(0, train(other, "2") + from + Arguments{"--optim.lr", "1e-12"});
  EXPECT_THAT(ended.out, HasSubstr("rank 4, scale 4; trains 23120 of "));
  const double learned = loss_of({output_ / "export"});
  EXPECT_NEAR(loss_of({other}), learned, 1e-6 * learned);
  const Ended refused = expect_code(
      64, train(folder_->path() / "refused", "2") + from + Arguments{"--adapter.rank", "16"});
  EXPECT_THAT(refused.err, HasSubstr("adapter.rank differs from the adapter in '"));
}

// The checkpoint holds the adapter, and its note what the folder said.
TEST_F(AdapterRun, ResumesWithoutTheFolderItStartedFrom) {
  const fs::path start = folder_->path() / "start", other = folder_->path() / "resumed",
                 whole = folder_->path() / "unbroken";
  fs::copy(output_ / "export", start);
  const auto run = [&](const fs::path& output) {
    return train(output, "4") +
           Arguments{"--adapter.kind",     "lora",    "--adapter.path",    start,
                     "--checkpoint.every", "2 steps", "--checkpoint.keep", "9"};
  };
  expect_code(0, run(whole));
  expect_code(0, run(other));
  fs::remove_all(other / "checkpoints/step-00000004");
  fs::remove_all(start);
  EXPECT_THAT(expect_code(0, run(other)).out, HasSubstr("resumed from"));
  EXPECT_EQ(column(other, "loss"), column(whole, "loss"));
  EXPECT_THAT(expect_code(64, run(other) + Arguments{"--adapter.rank", "16"}).err,
              HasSubstr("adapter.rank differs from the adapter in '"));
  EXPECT_THAT(expect_code(66, run(folder_->path() / "fresh")).err,
              HasSubstr("adapter_config.json"));
}

// Each host has its own copy of the folder.
TEST_F(AdapterRun, OfRanksWithOtherScalesIsRefused) {
  const fs::path changed = folder_->path() / "changed", output = folder_->path() / "unlike";
  fs::copy(output_ / "export", changed);
  const auto of = [&](const fs::path& start) {
    return train(output, "2") + Arguments{"--adapter.kind", "lora", "--adapter.path", start};
  };
  json config = json::parse(read_file(changed / "adapter_config.json"));
  config["base_model_name_or_path"] = "/the/same/base/elsewhere";
  std::ofstream(changed / "adapter_config.json") << config;
  EXPECT_EQ(run_unlike_ranks(of(output_ / "export"), of(changed)).first.code, 0);
  fs::remove_all(output);
  config["use_rslora"] = true;
  std::ofstream(changed / "adapter_config.json") << config;
  const auto [first, second] = run_unlike_ranks(of(output_ / "export"), of(changed));
  EXPECT_EQ(first.code, 78) << first.out << first.err;
  EXPECT_EQ(second.code, 78) << second.out << second.err;
  EXPECT_THAT(first.err,
              HasSubstr("adapter.rank_stabilized is false on rank 0 and true on rank 1"));
}

// The same bytes as from the run, with the tokenizer that the folder has.
TEST_F(AdapterRun, IsExportedFromItsPeftFolderToo) {
  const fs::path& made = folder_->path();
  const fs::path adapter = made / "another's";
  fs::copy(output_ / "export", adapter);
  json words = json::parse(read_file(adapter / "tokenizer_config.json"));
  words["model_max_length"] = 77;
  std::ofstream(adapter / "tokenizer_config.json") << words;
  expect_code(0, {"export", output_, "--merged", "--out", made / "of-run"});
  expect_code(0, {"export", adapter, "--merged", "--out", made / "of-folder"});
  EXPECT_EQ(read_file(made / "of-folder/model.safetensors"),
            read_file(made / "of-run/model.safetensors"));
  EXPECT_EQ(json::parse(read_file(made / "of-folder/tokenizer_config.json")), words);
  expect_code(0, {"export", output_, "--gguf", made / "of-run.gguf"});
  expect_code(0, {"export", "--checkpoint", adapter, "--gguf", made / "of-folder.gguf"});
  EXPECT_EQ(read_file(made / "of-folder.gguf"), read_file(made / "of-run.gguf"));
  expect_code(0, {"export", adapter, "--merged", "--gguf", made / "of-folder-merged.gguf"});

  const auto refused = [](int code, const Arguments& flags) {
    return unwrapped(expect_code(code, Arguments{"export"} + flags).err);
  };
  EXPECT_THAT(refused(64, {adapter, "--out", made / "no"}),
              HasSubstr("is the folder of a PEFT adapter already: give --merged"));
  EXPECT_THAT(refused(64, {adapter, "--checkpoint", "best", "--gguf", made / "no"}),
              HasSubstr("selects a checkpoint of a run"));
  json config = json::parse(read_file(adapter / "adapter_config.json"));
  config["base_model_name_or_path"] = (made / "nowhere").string();
  std::ofstream(adapter / "adapter_config.json") << config;
  EXPECT_THAT(refused(66, {adapter, "--merged", "--out", made / "no"}),
              HasSubstr("does not exist: give its folder with --model"));
  expect_code(0, {"export", adapter, "--merged", "--out", made / "named", "--model", kModel});
  EXPECT_FALSE(fs::exists(made / "no"));
}

TEST_F(AdapterRun, IsPlannedAndChecked) {
  const auto plan_of = [&](const Arguments& flags) {
    return json::parse(expect_code(0, Arguments{"plan"} + flags + Arguments{"--json"}).out);
  };
  Arguments run = train(folder_->path() / "planned");
  run.erase(run.begin());
  const json whole = plan_of(run), adapter = plan_of(run + kLora);
  EXPECT_LT(adapter.at("peak_bytes"), whole.at("peak_bytes"));
  EXPECT_LT(adapter.at("checkpoint_bytes").get<double>(),
            0.2 * whole.at("checkpoint_bytes").get<double>());
  EXPECT_THAT(expect_code(0, Arguments{"check"} + run + kLora).out, Not(HasSubstr("failed")));
}

// The folder for PEFT says that both are tied, and the merged model keeps them so.
TEST(AdapterOfATiedModel, TrainsEmbeddingAndHeadAsOne) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", merged = folder.path() / "merged";
  expect_code(0, lora_run(output, "3") + Arguments{"--adapter.modules_to_save", "embed_tokens",
                                                   "--checkpoint.export", "end"});
  const double run = loss_of({output});
  EXPECT_TRUE(json::parse(read_file(output / "export/adapter_config.json"))
                  .at("ensure_weight_tying")
                  .get<bool>());
  EXPECT_EQ(loss_of({output / "export"}), run);
  expect_code(0, {"export", output, "--merged", "--out", merged});
  EXPECT_NEAR(loss_of({merged}), run, 2e-6 * run);
  EXPECT_TRUE(json::parse(read_file(merged / "config.json")).at("tie_word_embeddings").get<bool>());
  const sherd::SafetensorsFile before(kModel + "/model.safetensors");
  const sherd::SafetensorsFile after((merged / "model.safetensors").string());
  const auto embedding = [](const sherd::SafetensorsFile& file) {
    return file.read(*file.find("model.embed_tokens.weight"));
  };
  EXPECT_FALSE(embedding(after).equal(embedding(before)));
  EXPECT_FALSE(after.contains("lm_head.weight"));
  EXPECT_THAT(expect_code(65, {"export", output, "--gguf", folder.path() / "lora.gguf"}).err,
              HasSubstr("'model.embed_tokens' is trained whole"));
}

TEST(AdapterFaults, AreTold) {
  const TempFolder folder;
  const auto refuse = [&](const Arguments& flags, const std::string& message) {
    const Ended ended = expect_code(
        64, train(folder.path() / "run", "1") + Arguments{"--adapter.kind", "lora"} + flags);
    EXPECT_THAT(unwrapped(ended.err), HasSubstr(message));
    EXPECT_FALSE(fs::exists(folder.path() / "run/checkpoints"));
  };
  refuse({"--adapter.rank", "0"}, "--adapter.rank 0: must be an integer from 1 to 65536");
  refuse({"--adapter.targets", "q_porj"}, "Did you mean \"q_proj\"?");
  refuse({"--adapter.targets", ".*(q_proj"}, "is no regular expression");
  refuse({"--adapter.targets", ".*q_proj", "--adapter.layers", "0"},
         "adapter.layers is for a list of names in adapter.targets");
}

TEST(AdapterFaults, AreToldOfARunThatTrainedNone) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", out = folder.path() / "merged";
  expect_code(0, train(output, "1"));
  EXPECT_THAT(unwrapped(expect_code(64, {"export", output, "--merged", "--out", out}).err),
              HasSubstr("trained no adapter: leave it out, and the model is written"));
  EXPECT_FALSE(fs::exists(out));
}

// The first evaluation is the best, and the run learns on.
TEST(AdapterOfTheBest, IsExportedWithoutWhatWasLearnedAfterIt) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", best = folder.path() / "best";
  expect_code(0, evaluated(output, "3", "1 steps") + kLora + kFirstIsBest +
                     Arguments{"--checkpoint.best", "true", "--checkpoint.export", "end"});
  expect_code(0, {"export", output, "--checkpoint", "best", "--out", best});
  expect_code(0, {"export", output, "--checkpoint", "1", "--out", folder.path() / "first"});
  const auto weights_in = [](const fs::path& adapter) {
    return read_file(adapter / "adapter_model.safetensors");
  };
  EXPECT_TRUE(weights_in(best) == weights_in(folder.path() / "first"));
  EXPECT_FALSE(weights_in(best) == weights_in(output / "export"));
}

}  // namespace
}  // namespace sherd::test
