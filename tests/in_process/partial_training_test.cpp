// Training a part of a model: what changes, what a checkpoint holds, and what it needs to be used.

#include <algorithm>
#include <set>

#include <ATen/ops/equal.h>

#include "sherd/checkpoint.h"
#include "sherd/safetensors.h"
#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

const Arguments kTopLayer = {"--model.trainable", R"(model\.layers\.4\..*, model.norm.weight)"};

bool is_trained(const std::string& name) {
  return name.starts_with("model.layers.4.") || name == "model.norm.weight";
}

// The parameters whose values differ between two model folders.
std::set<std::string> changed_parameters(const fs::path& one, const fs::path& other) {
  const SafetensorsFolder left(one.string()), right(other.string());
  std::set<std::string> changed;
  for (const std::string& name : left.names()) {
    const auto from = left.find(name), to = right.find(name);
    if (!to || !at::equal(from->file->read(*from->entry), to->file->read(*to->entry))) {
      changed.insert(name);
    }
  }
  return changed;
}

std::int64_t bytes_in(const fs::path& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

void flip_last_bit_of_weights(const fs::path& model) {
  const fs::path file = model / "model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
}

// One run on two ranks of 50 steps, evaluated at its end.
class PartialTraining : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    trained_ = expect_code(0, on_ranks(2, train(run(), "50")) + kTopLayer +
                                  Arguments{"--train.micro_batch", "3", "--optim.lr", "1e-3",
                                            "--data.eval", kQuestions, "--data.eval_limit", "8"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static fs::path run() { return folder_->path() / "run"; }
  static fs::path checkpoint() { return run() / "checkpoints/step-00000050"; }
  static fs::path exported() {
    const fs::path out = folder_->path() / "hf/stories260k";
    if (!fs::exists(out)) {
      fs::create_directories(out.parent_path());
      expect_code(0, {"export", "--checkpoint", run(), "--out", out});
    }
    return out;
  }

  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
  static inline Ended trained_;
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
};

TEST_F(PartialTraining, ChangesTheTrainedParametersAndNoBitOfTheOthers) {
  const auto losses = column(run(), "loss");
  EXPECT_LT(losses.back(), losses.front());
  const std::set<std::string> changed = changed_parameters(kModel, exported());
  EXPECT_EQ(changed.size(), 10U);  // nine of the layer and the last norm
  EXPECT_TRUE(std::all_of(changed.begin(), changed.end(), is_trained));
}

TEST_F(PartialTraining, SavesTheTrainedParametersAlone) {
  const auto manifest = verify_checkpoint(checkpoint());
  EXPECT_EQ(manifest.base.value_or("").size(), 64U);
  std::int64_t trained = 0;
  for (const auto& [name, parameter] : manifest.parameters) {
    EXPECT_TRUE(is_trained(name)) << name;
    trained += parameter.pieces.back().end;
  }
  EXPECT_EQ(manifest.parameters.size(), 10U);
  EXPECT_LE(static_cast<double>(bytes_in(checkpoint())), 1.05 * 12 * static_cast<double>(trained));
}

TEST_F(PartialTraining, SaysHowMuchIsTrained) {
  EXPECT_THAT(trained_.out, HasSubstr("(45.5k trained)"));
}

TEST_F(PartialTraining, EvaluatesAndGeneratesAsItsExport) {
  const Arguments flags = {"--data", kQuestions,     "--limit", "8",      "--batch",
                           "8",      "--max-length", "128",     "--json", "--loss-only"};
  const auto loss_of = [&](const fs::path& model) {
    const Ended ended = expect_code(0, Arguments{"eval", "--model", model} + flags);
    return nlohmann::json::parse(ended.out).at("loss").get<double>();
  };
  const double loss = loss_of(run());
  EXPECT_EQ(loss, loss_of(exported()));
  EXPECT_NE(loss, loss_of(kModel));
  EXPECT_NEAR(loss, events(run(), "evaluation").back().at("loss").get<double>(), 1e-6);
  const auto text_of = [](const fs::path& model) {
    return expect_code(
               0, {"generate", model, "--prompt", "Once upon a time", "--max-new-tokens", "12"})
        .out;
  };
  EXPECT_EQ(text_of(run()), text_of(exported()));
}

TEST_F(PartialTraining, ExportsTheWholeModelAsGguf) {
  const fs::path of_run = folder_->path() / "run.gguf";
  const fs::path of_export = folder_->path() / "export.gguf";
  expect_code(0, {"export", "--checkpoint", run(), "--gguf", of_run});
  expect_code(0, {"export", exported(), "--gguf", of_export});
  EXPECT_TRUE(read_file(of_run) == read_file(of_export));
}

// A run over a base of its own, which a test may change.
class PartialBase : public testing::Test {
 protected:
  PartialBase() { expect_code(0, arguments() + Arguments{"--checkpoint.every", "1 steps"}); }
  [[nodiscard]] Arguments arguments(const char* steps = "1", const char* model = "model") {
    if (!fs::exists(folder_.path() / "model") && !fs::exists(folder_.path() / model)) {
      copy_of_model(folder_.path() / "model");
    }
    Arguments words = train(run(), steps) + kTopLayer;
    std::replace(words.begin(), words.end(), kModel, (folder_.path() / model).string());
    return words;
  }
  [[nodiscard]] fs::path run() const { return folder_.path() / "run"; }
  [[nodiscard]] fs::path model() const { return folder_.path() / "model"; }

  TempFolder folder_;
};

TEST_F(PartialBase, ThatHasChangedIsRefused) {
  flip_last_bit_of_weights(model());
  const Ended resumed = expect_code(64, arguments("2"));
  EXPECT_THAT(resumed.err, HasSubstr("belongs to a run with another base"));
  EXPECT_THAT(resumed.err, HasSubstr("the base '" + model().string() + "' has different content"));
  EXPECT_THAT(resumed.err, HasSubstr("give a folder that has them as model.path"));
  const Ended evaluated = expect_code(
      65, {"eval", "--model", run(), "--data", kQuestions, "--limit", "2", "--loss-only"});
  EXPECT_THAT(evaluated.err, HasSubstr("they are another base. Restore that base there"));
  expect_code(65, {"generate", run(), "--prompt", "Tom"});
  const fs::path out = folder_.path() / "hf";
  const Ended exported = expect_code(65, {"export", "--checkpoint", run(), "--out", out});
  EXPECT_THAT(exported.err, HasSubstr("Name the folder that has that base with --model"));
  EXPECT_FALSE(fs::exists(out));
  expect_code(0, {"export", "--checkpoint", run(), "--model", kModel, "--out", out});
  flip_last_bit_of_weights(model());  // as it was
  expect_code(0, arguments("2"));
}

TEST_F(PartialBase, MayBeMoved) {
  fs::rename(model(), folder_.path() / "elsewhere");
  const Ended resumed = expect_code(0, arguments("2", "elsewhere"));
  EXPECT_THAT(resumed.out, HasSubstr("resumed from"));
  EXPECT_THAT(column(run(), "loss"), testing::SizeIs(2));
  expect_code(0, {"generate", run(), "--prompt", "Tom", "--max-new-tokens", "2"});
}

TEST_F(PartialBase, OtherPatternsAreAnotherRun) {
  Arguments words = arguments("2");
  std::replace(words.begin(), words.end(), kTopLayer.back(), std::string("model.norm.weight"));
  EXPECT_THAT(expect_code(64, words).err, HasSubstr("model.trainable was"));
}

TEST(PartialRun, ThatWasStoppedGoesOnAsTheUninterruptedOne) {
  const TempFolder folder;
  const auto words = [&](const char* name, const char* ranks) {
    return on_ranks(std::stoi(ranks), train(folder.path() / name, "8")) + kTopLayer +
           Arguments{"--train.micro_batch", "2",    "--optim.clip_grad_norm",  "0.1",
                     "--optim.lr",          "1e-3", "--precision.param_dtype", "bfloat16"};
  };
  expect_code(0, words("whole", "2"));
  const Ended stopped = run_until({.text = "step 3/8"}, words("parts", "2"));
  EXPECT_EQ(stopped.code, 75) << stopped.out << stopped.err;
  const Ended rest = expect_code(0, words("parts", "2"));
  EXPECT_THAT(rest.out, HasSubstr("resumed from"));
  expect_same(folder.path() / "parts", folder.path() / "whole");
}

// Each rank computes one micro-batch, or one rank all of them.
TEST(PartialRun, HasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  const auto run = [&](int ranks, int samples, const Arguments& more) {
    const fs::path output = folder.path() / ("run-" + std::to_string(ranks) + "-" +
                                             std::to_string(samples) + more.back());
    expect_code(0, on_ranks(ranks, train_on(kQuestions, output, "4", std::to_string(samples))) +
                       kTopLayer +
                       Arguments{"--data.max_length", "128", "--train.micro_batch", "2",
                                 "--optim.lr", "1e-3"} +
                       more);
    return output;
  };
  const Arguments unclipped = {"--optim.clip_grad_norm", "none"};
  for (const int ranks : {2, 3}) {
    const fs::path one = run(1, 2 * ranks, unclipped), many = run(ranks, 2 * ranks, unclipped);
    EXPECT_EQ(column(one, "loss"), column(many, "loss")) << ranks;
    EXPECT_TRUE(exported_weights(one) == exported_weights(many)) << ranks;
  }
  const Arguments clipped = {"--optim.clip_grad_norm", "0.1"};
  const auto one = column(run(1, 6, clipped), "loss"), many = column(run(3, 6, clipped), "loss");
  for (std::size_t step = 0; step < one.size(); ++step) {
    EXPECT_NEAR(many[step], one[step], 1e-6 * one[step]) << step + 1;
  }
}

// Saving memory changes no bit.
TEST(PartialRun, IsTheSameWithCheckpointingAndOnADisk) {
  const TempFolder folder;
  const auto run = [&](const std::string& name, const Arguments& more) {
    const fs::path output = folder.path() / name;
    expect_code(0, train(output, "3") + kTopLayer +
                       Arguments{"--precision.param_dtype", "bfloat16"} + more);
    return output;
  };
  const fs::path plain = run("plain", {});
  expect_same(run("checkpointed", {"--memory.activation_checkpointing", "true"}), plain);
  const fs::path disk = folder.path() / "disk";
  fs::create_directory(disk);
  expect_same(run("offloaded", all_on_disk(disk)), plain);
}

TEST(PartialRun, UnderFloat16ScalesItsLoss) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, train(output, "6") + kTopLayer +
                     Arguments{"--precision.param_dtype", "float16", "--optim.lr", "1e-3"});
  const auto losses = column(output, "loss");
  EXPECT_LT(losses.back(), losses.front());
}

TEST(PartialRun, OfPatternsThatCannotBeIsRefused) {
  const TempFolder folder;
  const auto refused = [&](const std::string& pattern, const Arguments& more = {}) {
    return unwrapped(expect_code(64, train(folder.path() / "run") +
                                         Arguments{"--model.trainable", pattern} + more)
                         .err);
  };
  const std::string none = refused("model.layers.4.mlp.up_projs.weight");
  EXPECT_THAT(none, HasSubstr("\"model.layers.4.mlp.up_projs.weight\" matches the whole name of no "
                              "parameter. Nearest are model.layers.4.mlp.up_proj.weight, "));
  EXPECT_THAT(refused("layers.4"), HasSubstr("matches the whole name of no parameter"));
  EXPECT_THAT(refused("(layers"),
              HasSubstr("model.trainable: \"(layers\" is no regular expression"));
  EXPECT_THAT(refused("model.norm.weight", {"--model.init", "random"}),
              HasSubstr("model.trainable trains a part of given weights"));
  EXPECT_FALSE(fs::exists(folder.path() / "run/checkpoints"));
}

TEST(PartialRun, IsPlannedAndCheckedAsAPart) {
  const TempFolder folder;
  Arguments words = train(folder.path() / "run") + kTopLayer +
                    Arguments{"--precision.param_dtype", "bfloat16", "--optim.lr", "1e-3"};
  words.front() = "plan";
  const auto plan = nlohmann::json::parse(expect_code(0, words + Arguments{"--json"}).out);
  const auto all = plan.at("parameters").get<double>();
  const auto trained = plan.at("trained_parameters").get<double>();
  EXPECT_EQ(trained, 45'504);
  EXPECT_EQ(plan.at("checkpoint_bytes").get<double>(), 12 * trained);
  // Up to what aligns shards: frozen parameters only travel.
  const auto& held = plan.at("phases").at("optimizer").at("items");
  EXPECT_NEAR(held.at("travelling shards").get<double>(), 2 * all, 2 * all / 50);
  EXPECT_NEAR(held.at("master shards").get<double>(), 4 * trained, 4 * trained / 50);
  EXPECT_NEAR(held.at("optimizer state").get<double>(), 8 * trained, 8 * trained / 50);
  EXPECT_NEAR(held.at("gradient shards").get<double>(), 4 * trained, 4 * trained / 50);
  words.front() = "check";
  expect_code(0, words);
}

}  // namespace
}  // namespace sherd::test
