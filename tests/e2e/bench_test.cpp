// `sherd bench`: what it prints, that it is repeatable, and what it says of token files that do not
// fit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;

Arguments bench(const std::string& model, const Arguments& more = {}) {
  return Arguments{"bench", "--model",  model, "--seq", "64",   "--steps",
                   "2",     "--warmup", "1",   "--lr",  "1e-3", "--json"} +
         more;
}

json result_of(const Arguments& arguments) {
  const Ended ended = expect_code(0, arguments);
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
  return json::parse(ended.out);
}

void write_ids(const fs::path& path, const std::vector<std::int32_t>& ids) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(ids.size() * sizeof(std::int32_t)));
}

TEST(Bench, TakesMomentsInBf16) {
  const auto with = [](const char* moments) {
    return result_of(bench(kModel, {"--dtype", "bf16", "--master", "bfloat16", "--reduce-dtype",
                                    "bf16", "--moments", moments, "--device", "cpu"}));
  };
  const json narrow = with("bf16"), wide = with("fp32");
  EXPECT_EQ(narrow.at("moments"), "bf16");
  EXPECT_LT(narrow.at("planned_peak_bytes"), wide.at("planned_peak_bytes"));
  EXPECT_EQ(narrow.at("losses").at(0), wide.at("losses").at(0));  // before the first update
}

// 504 rows of 512 logits in bf16. A chunk is the most that forward holds, also where products of 16
// bits take room in fp32.
TEST(Bench, TakesTheLossInChunks) {
  const auto with = [](const Arguments& chunk) {
    return result_of(bench(
        kModel, Arguments{"--micro-batch", "8", "--dtype", "bf16", "--device", "cpu"} + chunk));
  };
  const auto activations = [](const json& line) {
    return line.at("planned_phases").at("forward").at("items").dump();
  };
  const json at_once = with({}), by_tokens = with({"--loss-chunk-tokens", "128"});
  const json by_bytes = with({"--loss-chunk-bytes", "131072"});
  EXPECT_THAT(activations(at_once), testing::Not(testing::HasSubstr("chunked_linear")));
  EXPECT_THAT(activations(by_tokens), testing::HasSubstr("chunked_linear_cross_entropy"));
  EXPECT_EQ(activations(by_bytes), activations(by_tokens));
  EXPECT_EQ(by_bytes.at("losses"), by_tokens.at("losses"));
  EXPECT_NEAR(by_tokens.at("losses").at(0), at_once.at("losses").at(0), 1e-3);
}

TEST(Bench, HasNcclsReduceScatterOnGpusAlone) {
  const auto with = [](const char* way) {
    return bench(kModel, {"--reduce-scatter", way, "--device", "cpu", "-n", "2"});
  };
  EXPECT_THAT(expect_code(69, with("native")).err,
              testing::HasSubstr("ranks without GPUs have no reduce-scatter of NCCL's"));
  EXPECT_THAT(expect_code(64, with("ring")).err, testing::HasSubstr("ring must be one of "));
}

// GPUs alone have a choice.
TEST(Bench, TakesTheKernelOfAttention) {
  EXPECT_TRUE(result_of(bench(kModel, {"--attention", "flash", "--device", "cpu"}))
                  .at("attention")
                  .empty());
  EXPECT_THAT(expect_code(64, bench(kModel, {"--attention", "ring"})).err,
              testing::HasSubstr("ring must be one of "));
}

TEST(Bench, HasGraphsOnGpusAlone) {
  EXPECT_THAT(expect_code(64, bench(kModel, {"--cuda-graphs", "--device", "cpu"})).err,
              testing::HasSubstr("--cuda-graphs is given, and this run computes on the CPU"));
}

TEST(Bench, PrintsTimesMemoryAndLosses) {
  const auto start = std::chrono::steady_clock::now();
  const json line = result_of(bench(kModel, {"--ranks", "2", "--profile"}));
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  EXPECT_FALSE(line.at("isa").get<std::string>().empty());
  EXPECT_GT(line.at("seconds_to_first_step"), 0.0);
  double until_timed_end = line.at("seconds_to_first_step");
  for (const double step : line.at("all_step_seconds")) {
    until_timed_end += step;
  }
  EXPECT_LT(until_timed_end, whole.count());
  EXPECT_EQ(line.at("kernels"), "");  // of GPUs
  EXPECT_EQ(line.at("transport"), "shared memory");
  EXPECT_GT(line.at("step_seconds").at("median"), 0.0);
  EXPECT_FALSE(line.at("all_step_seconds").empty());
  EXPECT_LE(line.at("step_seconds").at("min"), line.at("step_seconds").at("max"));
  EXPECT_GT(line.at("tokens_per_second"), 0.0);
  EXPECT_GT(line.at("matmul_limit_seconds"), 0.0);
  EXPECT_EQ(line.at("peak_rank_bytes").size(), 2);
  EXPECT_EQ(line.at("peak_rank_pss_bytes").size(), 2);
  EXPECT_EQ(line.at("constant_rank_pss_bytes").size(), 2);
  EXPECT_GT(line.at("planned_peak_bytes"), 0);
  for (const char* phase : {"load", "forward", "backward", "optimizer"}) {
    EXPECT_LE(line.at("planned_phases").at(phase).at("total_bytes"), line.at("planned_peak_bytes"));
  }
  EXPECT_EQ(line.at("losses").size(), 4);  // warm-up, timed, and the one for memory
  for (const char* part :
       {"gather", "forward", "backward", "reduce", "clip", "optimizer", "wait"}) {
    EXPECT_GE(line.at("split_seconds").at(part), 0.0) << part;
  }
  bool attention = false;
  for (const json& entry : line.at("operators")) {
    attention = attention || entry.at("name") == "sherd::attention";
  }
  EXPECT_TRUE(attention);
  EXPECT_FALSE(line.contains("device_groups"));  // which are of a GPU
}

TEST(Bench, RefusesWhatWouldTakeTooLong) {
  const std::string llama_350m = SHERD_TEST_SOURCE_DIR "/benchmarks/peers/shapes/llama-350m.json";
  const Ended before = expect_code(64, {"bench", "--model", llama_350m, "--steps", "10000"});
  EXPECT_THAT(before.err,
              testing::AllOf(testing::HasSubstr("this bench would take about "),
                             testing::HasSubstr("minutes more, and --max-minutes is 10"),
                             testing::HasSubstr("--max-minutes none")));
  EXPECT_LT(before.seconds, 10);  // no weights were made
  const Ended after_warm_up =
      expect_code(64, bench(kModel, {"--ranks", "2", "--max-minutes", "0.0001"}));
  EXPECT_THAT(after_warm_up.err, testing::HasSubstr("--max-minutes is 0.0001"));
  EXPECT_THAT(expect_code(64, bench(kModel, {"--max-minutes", "soon"})).err,
              testing::HasSubstr("--max-minutes"));
}

TEST(Bench, ShowsProgressBesideTheResult) {
  const Ended ended = expect_code(0, bench(kModel));
  EXPECT_THAT(ended.err, testing::HasSubstr("step 1 of 4: "));
}

TEST(Bench, HasTheSameLossesEveryTimeAndOnAnyNumberOfRanks) {
  const fs::path config = fs::path(kModel) / "config.json";
  const auto losses = [&](const Arguments& more) {
    return result_of(bench(config.string(), Arguments{"--dtype", "fp32"} + more))
        .at("losses")
        .get<std::vector<double>>();
  };
  const auto one = losses({"--accum", "2"});
  EXPECT_NEAR(one.front(), std::log(512), 0.1);  // random weights know nothing
  EXPECT_EQ(one, losses({"--accum", "2"}));
  const auto two = losses({"--ranks", "2"});
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i], two[i], 1e-5) << i;
  }
}

TEST(Bench, ComputesInFp16WithAScaledLoss) {
  const json half = result_of(bench(kModel, {"--dtype", "fp16", "--ranks", "2"}));
  EXPECT_EQ(half.at("dtype"), "fp16");
  const json full = result_of(bench(kModel, {"--dtype", "fp32", "--ranks", "2"}));
  EXPECT_EQ(full.at("dtype"), "fp32");
  const auto losses = half.at("losses").get<std::vector<double>>();
  // Later ones differ: steps whose gradients overflow are left out until the scale fits.
  EXPECT_NEAR(losses.front(), full.at("losses").front().get<double>(), 0.02);
  EXPECT_LT(losses.back(), losses.front());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_TRUE(std::isfinite(losses[i])) << i;
    EXPECT_TRUE(std::isfinite(half.at("grad_norms")[i].get<double>())) << i;
  }
}

TEST(Bench, OfNoTimedStepsMeasuresMemoryAlone) {
  Arguments arguments = bench(kModel);
  *std::next(std::find(arguments.begin(), arguments.end(), "--steps")) = "0";
  const json line = result_of(arguments);
  EXPECT_FALSE(line.contains("step_seconds"));
  EXPECT_FALSE(line.contains("matmul_limit_seconds"));
  EXPECT_EQ(line.at("peak_rank_pss_bytes").size(), 1);
  EXPECT_EQ(line.at("losses").size(), 2);
}

TEST(Bench, TakesEveryStrategyAndSpellingOfADtype) {
  const json hybrid = result_of(bench(kModel, {"-n", "2", "--strategy", "hybrid_shard"}));
  EXPECT_EQ(hybrid.at("losses"), result_of(bench(kModel, {"-n", "2"})).at("losses"));
  EXPECT_EQ(result_of(bench(kModel, {"--dtype", "float32"})).at("dtype"), "fp32");
}

TEST(Bench, OfOneRankExchangesNothing) {
  EXPECT_EQ(result_of(bench(kModel)).at("transport"), "nothing (one rank)");
  EXPECT_THAT(expect_code(0, {"bench", "--model", kModel, "--seq", "16", "--steps", "1"}).out,
              testing::HasSubstr("exchange between ranks: nothing (one rank)\n"));
}

TEST(Bench, OfRanksThatWereNotStartedAlikeEndsAndTellsWhatDiffers) {
  const auto [first, second] = run_unlike_ranks(bench(kModel), bench(kModel, {"--accum", "2"}));
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(first.err, testing::HasSubstr("--accum is 1 on rank 0 and 2 on rank 1"));
}

TEST(Bench, ReadsTokensInOrder) {
  const TempFolder folder;
  std::vector<std::int32_t> ids(64 * 4);
  std::iota(ids.begin(), ids.end(), 3);
  write_ids(folder.path() / "ids", ids);
  const std::string file = (folder.path() / "ids").string();
  const auto all = result_of(bench(kModel, {"--tokens", file})).at("losses");
  const auto answer = result_of(bench(kModel, {"--tokens", file, "--supervised", "answer"}));
  EXPECT_NE(all, answer.at("losses"));
}

TEST(Bench, RefusesTokensThatDoNotFit) {
  const TempFolder folder;
  const std::string file = (folder.path() / "ids").string();
  const auto refused = [&](int code, const std::string& part) {
    EXPECT_THAT(expect_code(code, bench(kModel, {"--tokens", file})).err, testing::HasSubstr(part));
  };
  refused(66, "cannot be read; expected a file of int32 token ids");
  write_ids(file, std::vector<std::int32_t>(100, 1));
  refused(65, "has fewer than the 128 token ids that these steps need");
  write_ids(file, std::vector<std::int32_t>(64 * 4, 512));
  refused(65, "token id 512 is outside [0, 512) of the model");
}

}  // namespace
}  // namespace sherd::test
