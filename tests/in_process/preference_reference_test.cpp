// The reference of preference pairs: the run's model before its first step, whatever that is.

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "sherd/safetensors.h"
#include "tests/in_process/preference_runs.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const Arguments kOneEpoch = {"--train.epochs", "1", "--schedule.kind", "constant"};
const Arguments kTwoEpochs = {"--train.epochs", "2", "--schedule.kind", "constant"};

// An adapter of supervised training, as PEFT has it.
fs::path tuned_adapter(const fs::path& output, const std::string& steps,
                       const Arguments& more = {}) {
  expect_code(0, train(output, steps) +
                     Arguments{"--adapter.kind", "lora", "--adapter.rank", "4", "--optim.lr",
                               "1e-2", "--checkpoint.export", "end"} +
                     more);
  return output / "export";
}

Arguments from(const fs::path& adapter) {
  return {"--adapter.kind", "lora", "--adapter.path", adapter, "--optim.lr", "1e-3"};
}

// Policy and reference are the same model at first.
void expect_begins_at_ln_2(const fs::path& output) {
  const json first = read_log(output / "log.jsonl").at(0);
  EXPECT_NEAR(first["loss"].get<double>(), std::numbers::ln2, 1e-5);
  for (const char* name : {"rewards/chosen", "rewards/rejected"}) {
    EXPECT_NEAR(figure(first, name), 0, 1e-4) << name;
  }
  EXPECT_NEAR(events(output, "evaluation").front()["loss"].get<double>(), std::numbers::ln2, 1e-5);
}

// `sherd eval` builds the reference that the run had.
void expect_evaluated_alike(const fs::path& output) {
  const auto alone =
      json::parse(expect_code(0, {"eval", "--model", output, "--loss-only", "--json"}).out);
  const json last = events(output, "evaluation").back();
  EXPECT_NEAR(alone["loss"].get<double>(), last["loss"].get<double>(), 1e-5);
  EXPECT_NEAR(figure(alone, "rewards/chosen"), figure(last, "rewards/chosen"), 1e-4);
  EXPECT_GT(std::abs(last["loss"].get<double>() - std::numbers::ln2), 1e-3) << "learned nothing";
}

std::size_t kept_references(const fs::path& cache) {
  std::size_t count = 0;
  for (const auto& file : fs::directory_iterator(cache)) {
    count += file.path().extension() == ".reference" ? 1 : 0;
  }
  return count;
}

// Flips a bit of the mantissas of some numbers of a tensor, all of which are fp32.
void change_tensor(const fs::path& file, const std::string& name, std::int64_t begin,
                   std::int64_t end) {
  std::uint64_t last_byte = 0, first_byte = 0;
  {
    const sherd::SafetensorsFile weights(file.string());
    for (const auto& entry : weights.entries()) {
      last_byte = std::max<std::uint64_t>(last_byte, entry.end_byte);
    }
    first_byte = weights.find(name)->begin_byte;
  }
  std::string bytes = read_file(file);
  const std::size_t data = bytes.size() - last_byte + first_byte;
  for (std::int64_t i = begin; i < end; ++i) {
    bytes[data + 4 * static_cast<std::size_t>(i) + 2] ^= 0x20;
  }
  fs::permissions(file, fs::perms::owner_all);
  std::ofstream(file, std::ios::binary) << bytes;
}

void change_weights(const fs::path& model) {
  change_tensor(model / "model.safetensors", "model.layers.2.self_attn.q_proj.weight", 0, 4096);
}

TEST(Reference, OfATunedAdapterIsTheBaseWithIt) {
  const TempFolder folder;
  const fs::path adapter = tuned_adapter(folder.path() / "tuned", "6");
  std::vector<double> losses;
  for (const int ranks : {1, 2}) {
    const fs::path output = folder.path() / std::to_string(ranks);
    const Arguments verb = recipe("train", output, folder.path() / "cache") + from(adapter) +
                           kOneEpoch + Arguments{"--train.micro_batch", ranks == 1 ? "8" : "4"};
    expect_code(0, ranks == 1 ? verb : on_ranks(ranks, verb));
    expect_begins_at_ln_2(output);
    losses.push_back(read_log(output / "log.jsonl").back()["loss"]);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5);
  expect_evaluated_alike(folder.path() / "2");
}

// At the same path.
TEST(Reference, OfAnotherAdapterIsAnother) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache", adapter = folder.path() / "adapter";
  std::size_t kept = 0;
  for (const char* steps : {"2", "6"}) {
    const fs::path output = folder.path() / steps;
    fs::remove_all(adapter);
    fs::copy(tuned_adapter(folder.path() / (std::string("tuned-") + steps), steps), adapter);
    expect_code(0, recipe("train", output, cache) + from(adapter) + kOneEpoch);
    expect_begins_at_ln_2(output);
    EXPECT_GT(kept_references(cache), kept);
    kept = kept_references(cache);
  }
  const Ended changed = expect_code(65, {"eval", "--model", folder.path() / "2", "--loss-only"});
  EXPECT_THAT(changed.err,
              HasSubstr("is its model before the first step, which has changed since"));
  EXPECT_THAT(changed.err, HasSubstr(" and '" + adapter.string() + "', or give data without"));
}

TEST(Reference, WithModulesThatAreTrainedWholeHasTheirFirstValues) {
  const TempFolder folder;
  const Arguments whole = {"--adapter.modules_to_save", "embed_tokens"};
  const fs::path cache = folder.path() / "cache", fresh = folder.path() / "fresh",
                 continued = folder.path() / "continued";
  expect_code(0, recipe("train", fresh, cache) + whole + kOneEpoch +
                     Arguments{"--adapter.kind", "lora", "--optim.lr", "1e-3"});
  expect_begins_at_ln_2(fresh);
  expect_evaluated_alike(fresh);
  const fs::path adapter = tuned_adapter(folder.path() / "tuned", "6", whole);
  expect_code(0, recipe("train", continued, cache) + from(adapter) + kOneEpoch);
  expect_begins_at_ln_2(continued);
  expect_evaluated_alike(continued);
}

TEST(Reference, OfAQuantizedBaseIsQuantized) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache";
  const fs::path adapter = tuned_adapter(folder.path() / "tuned", "6");
  std::size_t kept = 0;
  for (const char* quantize : {"none", "q8_0"}) {
    const fs::path output = folder.path() / quantize;
    expect_code(0, recipe("train", output, cache) + from(adapter) + kOneEpoch +
                       Arguments{"--model.quantize", quantize});
    expect_begins_at_ln_2(output);
    expect_evaluated_alike(output);
    EXPECT_GT(kept_references(cache), kept);
    kept = kept_references(cache);
  }
}

// Steps drop what evaluations and the reference do not.
TEST(Reference, HasNoDropout) {
  const TempFolder folder;
  const fs::path adapter = tuned_adapter(folder.path() / "tuned", "6");
  const fs::path output = folder.path() / "run", plain = folder.path() / "plain";
  const Arguments flags = from(adapter) + kOneEpoch;
  expect_code(0, recipe("train", plain, "none") + flags);
  expect_code(0, recipe("train", output, "none") + flags + Arguments{"--adapter.dropout", "0.3"});
  EXPECT_NEAR(events(output, "evaluation").front()["loss"].get<double>(), std::numbers::ln2, 1e-5);
  EXPECT_GT(std::abs(read_log(output / "log.jsonl")[0]["loss"].get<double>() - std::numbers::ln2),
            1e-4);
  expect_evaluated_alike(output);
  EXPECT_NE(column(output, "loss"), column(plain, "loss"));
  const auto falls = [&](const char* dropout) {
    const auto checked =
        json::parse(expect_code(0, recipe("check", folder.path() / "check", "none") +
                                       Arguments{"--adapter.kind", "lora", "--adapter.dropout",
                                                 dropout, "--optim.lr", "1e-2", "--json"})
                        .out);
    for (const auto& item : checked.at("items")) {
      if (item.at("name") == "loss_falls") {
        return item.at("measured").get<double>();
      }
    }
    return 0.0;
  };
  EXPECT_NE(falls("0.3"), falls("0"));
}

// A sample of the weights is the same: what is kept is found by all of them.
TEST(Reference, IsKeptByAllBytesOfTheWeights) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache", model = copy_of_model(folder.path() / "model");
  const auto run = [&](const char* name, const Arguments& more = {}) {
    const fs::path output = folder.path() / name;
    expect_code(0, recipe("train", output, cache) + kOneEpoch +
                       Arguments{"--model.path", model.string()} + more);
    expect_begins_at_ln_2(output);
    return kept_references(cache);
  };
  EXPECT_EQ(run("first"), 1U);  // trained on and evaluated
  EXPECT_EQ(run("again"), 1U);
  change_tensor(model / "model.safetensors", "model.embed_tokens.weight", 4096, 8192);
  EXPECT_EQ(run("changed"), 2U);
  EXPECT_EQ(run("length", {"--data.max_length", "300"}), 3U);
}

class ResumedReference : public testing::Test {
 protected:
  void SetUp() override {
    copy_of_model(model_);
    expect_code(0, run(output_, kOneEpoch));
  }
  [[nodiscard]] Arguments run(const fs::path& output, const Arguments& more) const {
    return recipe("train", output, cache_) + Arguments{"--model.path", model_.string()} + more;
  }
  [[nodiscard]] static double last_loss(const fs::path& output) {
    return read_log(output / "log.jsonl").back()["loss"];
  }

  TempFolder folder_;
  fs::path model_ = folder_.path() / "model", cache_ = folder_.path() / "cache",
           output_ = folder_.path() / "run";
};

TEST_F(ResumedReference, StaysThoughTheWeightsAreOthers) {
  const fs::path whole = folder_.path() / "whole";
  expect_code(0, run(whole, kTwoEpochs));
  change_weights(model_);
  expect_code(0, run(output_, kTwoEpochs));
  EXPECT_EQ(last_loss(output_), last_loss(whole));
}

TEST_F(ResumedReference, NeedsNoWeights) {
  fs::remove(model_ / "model.safetensors");
  expect_code(0, run(output_, kTwoEpochs));
}

TEST_F(ResumedReference, IsNotComputedFromOtherWeights) {
  fs::remove_all(cache_);
  change_weights(model_);
  const Ended refused = expect_code(64, run(output_, kTwoEpochs));
  EXPECT_THAT(
      refused.err,
      HasSubstr("Its log-probabilities of recipes/data/preferences.jsonl are not in the folder of "
                "data.cache, and the model has changed since the run began: the SHA-256"));
  EXPECT_THAT(refused.err, HasSubstr("Restore the weights in '" + model_.string() +
                                     "', or that folder. To start over, give --resume never"));
  const Ended evaluated = expect_code(65, {"eval", "--model", output_, "--loss-only"});
  EXPECT_THAT(evaluated.err, HasSubstr("Restore the weights in '" + model_.string() +
                                       "', or give data without preference pairs"));
  change_weights(model_);  // as they were
  expect_code(0, run(output_, kTwoEpochs));
  expect_evaluated_alike(output_);
}

// What is no pair has the loss of supervised training, also in a run of pairs.
TEST(EvalOfPreferences, OfOtherDataIsSupervised) {
  const TempFolder folder;
  const fs::path data = folder.write("three.jsonl", kGood + "\n" + kGood + "\n" + kGood);
  const Arguments flags = {"--data",      data,    "--format", "prompt_completion",
                           "--loss-only", "--json"};
  for (const Arguments& adapter :
       {Arguments(), Arguments{"--adapter.kind", "lora", "--optim.lr", "1e-3"}}) {
    const fs::path output = folder.path() / (adapter.empty() ? "full" : "adapter");
    expect_code(0, recipe("train", output, "none") + kOneEpoch + adapter +
                       Arguments{"--checkpoint.export", "end"});
    const auto loss = [&](const fs::path& model) {
      const Ended ended = expect_code(0, Arguments{"eval", "--model", model} + flags);
      EXPECT_THAT(ended.out, Not(HasSubstr("figures")));
      return json::parse(ended.out).at("loss").get<double>();
    };
    EXPECT_NEAR(loss(output), loss(output / "export"), 1e-5);
  }
}

TEST(EvalOfPreferences, NeedARunThatLearnsThem) {
  const TempFolder folder;
  const Arguments flags = {"--data", kPairs, "--format", "preference", "--loss-only"};
  const Ended model = expect_code(64, Arguments{"eval", "--model", kModel} + flags);
  EXPECT_THAT(model.err, HasSubstr("--format preference takes loss and reference from a run with "
                                   "train.objective = \"dpo\": '" +
                                   kModel + "' is a model, not a run. Evaluate such a run, or"));
  expect_code(0, train(folder.path() / "run", "1"));
  const Ended supervised =
      expect_code(64, Arguments{"eval", "--model", folder.path() / "run"} + flags);
  EXPECT_THAT(supervised.err, HasSubstr("is a supervised run. Evaluate such a run, or the chosen "
                                        "answers alone with --format prompt_completion --columns "
                                        "prompt,chosen"));
  expect_code(0, {"eval", "--model", kModel, "--data", kPairs, "--format", "prompt_completion",
                  "--columns", "prompt,chosen", "--loss-only"});
}

}  // namespace
}  // namespace sherd::test
