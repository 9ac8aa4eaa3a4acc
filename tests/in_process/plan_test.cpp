// `sherd plan`: what it says, of this machine and of others, and its exit code.

#include <algorithm>
#include <sstream>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kRecipe = "recipes/stories260k-squad-32.toml";

/// A folder of a model without weights, tokenizer or data: Llama 3.1 8B.
class Plan : public testing::Test {
 protected:
  Plan() {
    fs::copy_file(SHERD_TEST_SOURCE_DIR "/tests/data/configs/llama-3.1-8b-instruct.json",
                  folder_.path() / "config.json");
  }
  [[nodiscard]] Arguments large_model(const Arguments& more = {}) const {
    return Arguments{"plan",
                     "--model.path",
                     folder_.path().string(),
                     "--train.output",
                     "nowhere",
                     "--data.train",
                     "no-such-file.json",
                     "--data.max_length",
                     "2048",
                     "--train.global_batch",
                     "32",
                     "--train.micro_batch",
                     "4",
                     "--json"} +
           more;
  }

 private:
  TempFolder folder_;
};

json plan_of(int code, const Arguments& arguments) {
  return json::parse(expect_code(code, arguments).out);
}

TEST_F(Plan, SaysOfEachPhaseWhatItHolds) {
  const Ended ended =
      expect_code(0, {"plan", kRecipe, "-n", "2", "--precision.param_dtype", "bfloat16"});
  for (const char* const part :
       {"2 ranks on 1 host, full_shard in ", "batch: the longest micro-batch of the data: ",
        "peak per rank, MiB: ", "  load  forward  backward  optimizer    save",
        "\n  float32 masters ", "\n  AdamW's moments ", "\n  activations ", "\nactivations in ",
        "ward: linear ", "\nprogram itself: ", "fits: ", "a checkpoint takes ", "a step takes ",
        " tokens/s\n  "}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
  EXPECT_THAT(ended.out, Not(HasSubstr("the usual estimate")));  // there is none of its shape
}

TEST_F(Plan, OfSplitMastersHoldsTwoBytesAParameterLess) {
  const Arguments halves = {"plan",     kRecipe,  "--precision.param_dtype",
                            "bfloat16", "--json", "--precision.master"};
  const auto masters_bytes = [&](const std::string& master) {
    const json plan = plan_of(0, halves + Arguments{master});
    return plan["phases"]["load"]["items"]["master shards"].get<std::int64_t>();
  };
  EXPECT_GT(masters_bytes("split"), 0);
  EXPECT_EQ(2 * masters_bytes("split"), masters_bytes("float32"));
  EXPECT_THAT(expect_code(0, {"plan", kRecipe, "--precision.param_dtype", "bfloat16",
                              "--precision.master", "split"})
                  .out,
              HasSubstr("\n  low halves of masters "));
}

TEST_F(Plan, OfAllInBf16HoldsEightBytesAParameter) {
  const json plan = plan_of(
      0, {"plan", kRecipe, "--precision.param_dtype", "bfloat16", "--precision.master", "bfloat16",
          "--precision.moments", "bfloat16", "--precision.reduce_dtype", "bfloat16", "--json"});
  const json& items = plan["phases"]["optimizer"]["items"];
  const auto weights = items["travelling shards"].get<std::int64_t>();
  EXPECT_FALSE(items.contains("master shards"));
  EXPECT_EQ(items["optimizer state"], 2 * weights);
  EXPECT_EQ(items["gradient shards"], weights);
}

TEST_F(Plan, IsTheSameAsJson) {
  const json plan = plan_of(0, {"plan", kRecipe, "-n", "2", "--json"});
  EXPECT_TRUE(plan.at("fits"));
  EXPECT_EQ(plan.at("device"), "cpu");
  EXPECT_EQ(plan.at("ranks"), 2);
  EXPECT_GT(plan.at("constant_bytes"), 0);
  EXPECT_GT(plan.at("available_bytes"), plan.at("peak_bytes"));
  EXPECT_GT(plan.at("checkpoint_bytes"), 12 * 260'000);
  EXPECT_GT(plan.at("step_seconds"), 0.0);
  EXPECT_EQ(plan.at("exposed_communication_seconds"), 0.0);
  EXPECT_GT(plan.at("tokens_per_second"), 0.0);
  const json& worst = plan.at("phases").at(plan.at("peak_phase").get<std::string>());
  EXPECT_LE(worst.at("total_bytes"), plan.at("peak_bytes"));
  EXPECT_TRUE(worst.at("items").contains(plan.at("peak_item").get<std::string>()));
}

TEST_F(Plan, TellsByItsExitCodeWhetherItFits) {
  EXPECT_FALSE(plan_of(1, {"plan", kRecipe, "--memory", "0.01", "--json"}).at("fits"));
  EXPECT_THAT(expect_code(1, {"plan", kRecipe, "--memory", "0.01"}).out,
              HasSubstr("does not fit: "));
}

TEST_F(Plan, IsOfOtherMachinesToo) {
  const json few = plan_of(1, large_model({"-n", "1", "--device", "h100-80g"}));
  const json many = plan_of(0, large_model({"-n", "8", "--device", "h100-80g"}));
  EXPECT_EQ(many.at("param_dtype"), "bfloat16");
  EXPECT_GT(many.at("parameters"), 8'000'000'000);
  EXPECT_GT(few.at("peak_bytes"), 3 * many.at("peak_bytes").get<std::int64_t>());
  const json hosts = plan_of(0, large_model({"-n", "4", "--nodes", "2", "--device", "a100-80g"}));
  EXPECT_EQ(hosts.at("ranks"), 8);
  EXPECT_EQ(hosts.at("hosts"), 2);
  const json slow =
      plan_of(0, large_model({"-n", "4", "--nodes", "2", "--device", "a100-80g", "--link", "0.1"}));
  EXPECT_GT(slow.at("exposed_communication_seconds"), hosts.at("exposed_communication_seconds"));
  EXPECT_LT(slow.at("tokens_per_second"), hosts.at("tokens_per_second"));
  EXPECT_LE(plan_of(0, large_model({"-n", "8", "--device", "h100-80g",
                                    "--memory.activation_checkpointing", "true"}))
                .at("peak_bytes"),
            many.at("peak_bytes"));
  EXPECT_EQ(plan_of(1, large_model({"-n", "2", "--device", "v100-32g"})).at("param_dtype"),
            "float16");
}

TEST_F(Plan, ListsWhatFits) {
  const json plan = plan_of(0, {"plan", kRecipe, "-n", "2", "--search", "--json"});
  // Three strategies with 1, 2 and 4 of 4 samples, and another with several micro-batches.
  EXPECT_EQ(plan.at("search").size(), 11);
  EXPECT_TRUE(plan.at("recommended").contains("parallel.strategy"));
  EXPECT_THAT(expect_code(0, {"plan", kRecipe, "--search"}).out,
              testing::AllOf(HasSubstr("settings that fit, fastest first:"),
                             HasSubstr("\nrecommended: "), HasSubstr("\n  --parallel.strategy ")));
  const json checkpointed = plan_of(
      0, {"plan", kRecipe, "--search", "--json", "--memory.activation_checkpointing", "true"});
  EXPECT_EQ(checkpointed.at("search").at(0).at("set").at("memory.activation_checkpointing"),
            "false");  // it fits without
  EXPECT_EQ(
      plan_of(1, {"plan", kRecipe, "--search", "--memory", "0.01", "--json"}).at("search").size(),
      0);
}

TEST_F(Plan, OfTheRecipesOfLargeModels) {
  EXPECT_THAT(
      expect_code(0, {"plan", "recipes/llama-3-8b.toml", "--device", "h100-80g", "-n", "8"}).out,
      HasSubstr("fits: "));
  const Arguments hosts = {"--device", "h100-80g", "-n", "8", "--nodes"};
  const Arguments large = Arguments{"plan", "recipes/llama-3-70b.toml"} + hosts;
  EXPECT_THAT(expect_code(1, large + Arguments{"2"}).out, HasSubstr("does not fit: "));
  EXPECT_THAT(expect_code(0, large + Arguments{"4"}).out, HasSubstr("fits: "));
}

// Of how many characters the longest line is.
size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

TEST_F(Plan, OfALargeModelStandsBesideTheUsualEstimate) {
  const Arguments plan = {"plan", "recipes/llama-3-8b.toml", "--device", "h100-80g", "-n", "8"};
  const Ended ended = expect_code(0, plan);
  EXPECT_THAT(ended.err, HasSubstr("planned without the data: "));
  EXPECT_LE(longest_line(ended.out), 120U);
  for (const char* const part :
       {"8.03B parameters", "the usual estimate for Llama 3 8B next to a plan, in GB",
        "full_shard in bfloat16 on 8 x a100-80g of one host, 4 x 2048 tokens per GPU, checkpointed",
        "\n  gradients                                       16     32.1  summed in float32",
        "\n  float32 masters                                  -     32.1", "12 + activations",
        "15-25 %", "up to 50 %", "2000-4000"}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
  const json estimate = plan_of(0, plan + Arguments{"--json"}).at("usual_estimate");
  EXPECT_EQ(estimate.at("model"), "Llama 3 8B");
  EXPECT_EQ(estimate.at("rows").size(), 18);
  for (const json& row : estimate.at("rows")) {
    EXPECT_FALSE(row.at("planned").get<std::string>().empty()) << row;
  }
  // It is of one setting, whatever is planned.
  const Arguments others = {"--json",   "--memory",           "10",    "--precision.reduce_dtype",
                            "bfloat16", "--precision.master", "split", "--memory.loss_chunk_tokens",
                            "64"};
  EXPECT_EQ(plan_of(1, plan + others).at("usual_estimate"), estimate);
  const json large = plan_of(0, {"plan", "recipes/llama-3-70b.toml", "--device", "h100-80g", "-n",
                                 "8", "--nodes", "4", "--json"});
  EXPECT_EQ(large.at("usual_estimate").at("model"), "Llama 3 70B");
  EXPECT_FALSE(plan_of(0, {"plan", kRecipe, "--json"}).contains("usual_estimate"));
}

// What the guide shows was printed by the program.
TEST_F(Plan, BesideTheUsualEstimateIsInTheGuide) {
  const std::string guide = read_file(SHERD_TEST_SOURCE_DIR "/docs/guide/llama3.md");
  for (const Arguments& of : {Arguments{"recipes/llama-3-8b.toml", "-n", "8"},
                              Arguments{"recipes/llama-3-70b.toml", "--nodes", "4", "-n", "8"}}) {
    const std::string out =
        expect_code(0, Arguments{"plan"} + of + Arguments{"--device", "h100-80g"}).out;
    std::istringstream lines(out.substr(out.find("the usual estimate")));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_THAT(guide, HasSubstr("    " + line + "\n"));
    }
  }
}

TEST_F(Plan, OfSeveralHostsTakesALinkOfEachRank) {
  const Arguments hosts = {"plan", "recipes/llama-3-8b.toml", "--device", "h100-80g", "--nodes"};
  EXPECT_THAT(expect_code(0, hosts + Arguments{"8"}).out,
              testing::AllOf(HasSubstr("45 GB/s between hosts, assumed (--link sets it)"),
                             HasSubstr("which strategy is the fastest depends on that link")));
  const auto speed = [&](const char* strategy, const Arguments& link) {
    return plan_of(0, hosts +
                          Arguments{"2", "-n", "8", "--json", "--train.global_batch", "64",
                                    "--parallel.strategy", strategy} +
                          link)
        .at("tokens_per_second")
        .get<double>();
  };
  EXPECT_LT(speed("full_shard", {"--link", "12.5"}), speed("hybrid_shard", {"--link", "12.5"}));
}

TEST_F(Plan, OfMoreAndMoreGpusIsOnPaper) {
  const Arguments plan = {
      "plan", "recipes/stories260k-squad.toml", "-n", "2", "--scaling", "--device", "h100-80g"};
  const json rows = plan_of(0, plan + Arguments{"--json"}).at("scaling");
  ASSERT_EQ(rows.size(), 11U);
  EXPECT_EQ(rows[0].at("ranks"), 1);
  EXPECT_EQ(rows[0].at("exposed_communication_seconds"), 0.0);
  EXPECT_EQ(rows[1].at("hosts"), 1);
  EXPECT_EQ(rows[2].at("hosts"), 2);
  EXPECT_EQ(rows[10].at("ranks"), 1024);
  for (size_t row = 1; row < rows.size(); ++row) {
    EXPECT_GE(rows[row].at("exposed_communication_seconds"),
              rows[row - 1].at("exposed_communication_seconds"));
    EXPECT_LE(rows[row].at("mfu"), rows[row - 1].at("mfu"));
    EXPECT_LE(rows[row].at("needed_bytes"), rows[row - 1].at("needed_bytes"));
  }
  EXPECT_THAT(expect_code(0, plan).out,
              testing::AllOf(HasSubstr("on more GPUs, each with the same batch:\n  GPUs "),
                             HasSubstr("\n  1024    512 ")));
  EXPECT_THAT(expect_code(64, {"plan", kRecipe, "--scaling"}).err,
              HasSubstr("--scaling is for GPUs: name the GPU, such as --device"));
}

TEST_F(Plan, LeavesAReserveOnGpus) {
  const json plan = plan_of(0, large_model({"-n", "8", "--device", "h100-80g"}));
  EXPECT_GT(plan.at("reserve_bytes"), 1 << 30);
  EXPECT_THAT(plan.at("phases").at("optimizer").at("items").dump(), HasSubstr("kept for"));
  EXPECT_EQ(plan_of(0, {"plan", kRecipe, "--json"}).at("reserve_bytes"), 0);
  EXPECT_THAT(
      expect_code(1, {"plan", "recipes/llama-3-8b.toml", "--device", "v100-32g", "-n", "4"}).out,
      HasSubstr("NCCL's buffers and unused parts of blocks (assumed)"));
}

TEST(PlanOfAGpu, HasToBeTold) {
  EXPECT_THAT(expect_code(64, {"plan", SHERD_TEST_SOURCE_DIR "/recipes/llama-3-8b.toml",
                               "--device.kind", "cuda"})
                  .err,
              HasSubstr("name the GPU to plan for, such as --device h100-80g"));
}

TEST_F(Plan, SaysWhatItTookInPlaceOfDataThatIsNotThere) {
  const Ended ended = expect_code(0, large_model({"-n", "8", "--device", "h100-80g"}));
  EXPECT_THAT(json::parse(ended.out).at("batch"),
              HasSubstr("without the data: 4 samples of 2048 tokens, all supervised"));
}

TEST_F(Plan, SaysOfADeviceThatNothingRunsThere) {
  EXPECT_THAT(expect_code(1, {"plan", kRecipe, "--device", "v100-32g", "--memory", "0.1"}).out,
              HasSubstr("it needs a build of Sherd with CUDA 12.6, and has no bfloat16"));
  EXPECT_THAT(expect_code(0, {"plan", kRecipe, "--device", "h100-80g"}).out,
              HasSubstr("not validated on this device: estimates only"));
}

TEST_F(Plan, RefusesWhatCannotBe) {
  const auto refused = [](const Arguments& arguments, const std::string& why) {
    EXPECT_THAT(expect_code(64, arguments).err, HasSubstr(why));
  };
  refused({"plan", kRecipe, "--device", "b300"}, "b300");
  refused({"plan", kRecipe, "--nodes", "0"}, "--nodes: Value 0 not in range");
  refused({"plan", kRecipe, "-n", "0"}, "--ranks: Value 0 not in range");
  refused({"plan", kRecipe, "--memory", "-1"}, "--memory");
  refused({"plan", kRecipe, "--link", "0"}, "--link");
  refused({"plan", kRecipe, "-n", "3"}, "train.global_batch");
  refused({"plan", kRecipe, "--train.no_such_key", "1"}, "no_such_key");
  refused({"plan", kRecipe, "-n", "2", "--parallel.strategy", "hybrid_shard",
           "--parallel.shard_size", "3"},
          "shard_size 3 does not divide");
}

}  // namespace
}  // namespace sherd::test
