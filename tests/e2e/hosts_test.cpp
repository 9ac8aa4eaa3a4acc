// Runs over two hosts: network namespaces, each with a `sherd launch` of its own.

#include "tests/e2e/training.h"
#include "tests/support/two_hosts.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.fault().empty()) {
      GTEST_SKIP() << "SKIPPED: " << hosts_.fault();
    }
  }
  // A launch on one of them.
  [[nodiscard]] std::unique_ptr<Program> launch(
      int host, const Arguments& verb, int ranks = 1,
      const std::string& address = TwoHosts::address(0)) const {
    return std::make_unique<Program>(
        Arguments{"launch", "--nnodes", "2", "--node-rank", std::to_string(host), "--master-addr",
                  address, "--master-port", "29571", "--timeout", timeout_, "-n",
                  std::to_string(ranks)} +
            verb,
        Arguments{}, "exec " + hosts_.on(host) + "\"$0\" \"$@\"");
  }
  [[nodiscard]] std::pair<Ended, Ended> on_both(const Arguments& verb, int ranks = 1) const {
    const auto first = launch(0, verb, ranks);
    const auto second = launch(1, verb, ranks);
    return {first->finish(), second->finish()};
  }
  [[nodiscard]] fs::path output(const std::string& name) const { return folder_.path() / name; }
  const TwoHosts hosts_;
  std::string timeout_ = "30";

 private:
  TempFolder folder_;
};

TEST_F(Hosts, TrainAsOneHostDoes) {
  const auto [first, second] = on_both(train(output("hosts"), "3"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, "");  // rank 0 speaks for all
  expect_code(0, on_ranks(2, train(output("ranks"), "3")));
  EXPECT_EQ(column(output("hosts"), "loss"), column(output("ranks"), "loss"));
  EXPECT_EQ(exported_weights(output("hosts")), exported_weights(output("ranks")));
}

TEST_F(Hosts, CheckARunTogether) {
  Arguments words = train(output("checked"), "3");
  words[0] = "check";
  const auto [first, second] = on_both(words, 2);
  ASSERT_EQ(first.code, 0) << first.out << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, "");
  EXPECT_THAT(first.out, HasSubstr("on all 4 ranks, bit for bit"));
  EXPECT_THAT(first.out, HasSubstr("32 samples of an epoch over 4 ranks: 0 missing"));
  EXPECT_THAT(first.out, HasSubstr("ok: 11 items"));
  EXPECT_TRUE(listing(output("checked").parent_path()).empty());
}

TEST_F(Hosts, CalibrateEachForItself) {
  const auto [first, second] = on_both({"bench", "--calibrate"});
  EXPECT_EQ(first.code, 64) << first.err;
  EXPECT_EQ(second.code, 64) << second.err;
  EXPECT_THAT(first.err, HasSubstr("these 2 are on several: run it once on each kind of host, with "
                                   "`-n 1`"));
}

TEST_F(Hosts, ShareMemoryWithinAndGatherWithinUnderHybridShard) {
  const auto [first, second] =
      on_both(train(output("hybrid"), "3") + Arguments{"--parallel.strategy", "hybrid_shard"}, 2);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.out, HasSubstr("exchange between ranks: shared memory, "));
  EXPECT_THAT(first.err + second.err, testing::Not(HasSubstr("gathers parameters across hosts")));
  expect_code(0, on_ranks(4, train(output("ranks"), "3")));
  const auto losses = column(output("hybrid"), "loss");
  const auto expected = column(output("ranks"), "loss");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-4);
  }
}

TEST_F(Hosts, EndWhereOneOfThemDies) {
  const auto first = launch(0, train(output("dies"), "100000"));
  const auto second = launch(1, train(output("dies"), "100000"));
  first->wait_for("step 2/");
  second->signal(SIGKILL, second->children().at(0));
  EXPECT_EQ(second->finish().code, 137);
  const Ended left = first->finish();
  EXPECT_EQ(left.code, 76) << left.err;
  EXPECT_LT(left.seconds, 35);
}

// No rank is told that the other is gone: not by a closed connection, nor by the store, which is on
// the other side of the cut for the second host.
TEST_F(Hosts, EndAtTheTimeoutOnBothSidesOfACut) {
  timeout_ = "12";
  const Arguments verb = train(output("cut"), "100000") + Arguments{"--log.every_steps", "1"};
  for (const int ranks : {1, 2}) {  // over process groups alone, and with shared memory
    const auto first = launch(0, verb, ranks);
    const auto second = launch(1, verb, ranks);
    first->wait_for("step 30/");
    hosts_.cut();
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Ended> ended = {first->finish(), second->finish()};
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    for (const Ended& side : ended) {
      EXPECT_EQ(side.code, 80) << side.err;
      EXPECT_THAT(side.err, testing::Not(HasSubstr("Exception raised from")));
    }
    EXPECT_THAT(ended[1].err, HasSubstr("The store, which rank 0 holds, does not answer"));
    hosts_.restore();
    fs::remove_all(output("cut"));
  }
}

TEST_F(Hosts, StopTogetherAndGoOnOnOne) {
  const auto first = launch(0, train(output("stops"), "400"));
  const auto second = launch(1, train(output("stops"), "400"));
  first->wait_for("step 2/");
  second->signal(SIGTERM);
  EXPECT_EQ(second->finish().code, 75);
  EXPECT_EQ(first->finish().code, 75);
  Program resumed(train(output("stops"), "400"));
  resumed.wait_for("resumed from ");
}

// The store of the first host answers; what the second listens on does not.
TEST_F(Hosts, SayWhoCannotReachWhom) {
  const Ended open = on_both(train(output("open"), "1")).first;
  ASSERT_EQ(open.code, 0) << open.err;
  if (!hosts_.admit_nobody(1)) {
    GTEST_SKIP() << "SKIPPED: no nft here, or no kernel for it";
  }
  const auto [first, second] = on_both(train(output("closed"), "3"));
  EXPECT_EQ(first.code, 69);
  EXPECT_EQ(second.code, 69);
  EXPECT_LT(first.seconds, open.seconds + 5);
  for (const std::string& err : {first.err, second.err}) {
    EXPECT_THAT(err, HasSubstr("hosts cannot reach each other: rank 0 on "));
    EXPECT_THAT(err, HasSubstr("(" + TwoHosts::address(0) + ") cannot reach rank 1 on "));
    EXPECT_THAT(err, HasSubstr(" at " + TwoHosts::address(1) + ":"));
    EXPECT_THAT(err, HasSubstr(": no answer. Ranks listen on ports that the system chooses"));
  }
  EXPECT_FALSE(fs::exists(output("closed")));
}

TEST_F(Hosts, SayWhatTheFirstHostsNameMeans) {
  timeout_ = "10";
  hosts_.resolve(0, "node0", "127.0.1.1");  // as a host calls itself
  hosts_.resolve(1, "node0", TwoHosts::address(0));
  const auto first = launch(0, train(output("loop"), "3"), 1, "node0");
  const auto second = launch(1, train(output("loop"), "3"), 1, "node0");
  const Ended waited = first->finish();
  const Ended tried = second->finish();
  EXPECT_EQ(waited.code, 76);
  EXPECT_EQ(tried.code, 76);
  EXPECT_THAT(waited.err, HasSubstr("rank 1 has not come yet"));
  EXPECT_THAT(waited.err, HasSubstr("On this host 'node0' is 127.0."));
  EXPECT_THAT(waited.err, HasSubstr("set MASTER_ADDR to this host's address"));
  EXPECT_THAT(tried.err, HasSubstr("rank 1 cannot reach rank 0 at node0:29571, which is " +
                                   TwoHosts::address(0) + " here: Connection refused. Trying for"));
  EXPECT_THAT(
      tried.err,
      HasSubstr(
          "did not meet the others at node0:29571 (cannot reach rank 0 at node0:29571, which is " +
          TwoHosts::address(0) + " here: Connection refused)"));
}

TEST_F(Hosts, SayThatANameDoesNotResolve) {
  timeout_ = "2";
  const auto second = launch(1, train(output("none"), "3"), 1, "node0.invalid");
  const std::string fault =
      "cannot reach rank 0 at node0.invalid:29571: the name does not resolve: ";
  const std::string err = second->finish().err;
  EXPECT_THAT(err, HasSubstr("[World] rank 1 " + fault));
  EXPECT_THAT(err, HasSubstr("did not meet the others at node0.invalid:29571 (" + fault));
}

TEST_F(Hosts, MeasureTheLinkBetweenThem) {
  if (!hosts_.shape("200mbit")) {
    GTEST_SKIP() << "SKIPPED: this kernel does not shape links (tc qdisc tbf)";
  }
  const auto [first, second] =
      on_both({"bandwidth", "--max-mib", "4", "--json", "--at-least", "1"}, 2);
  EXPECT_EQ(first.code, 1);
  EXPECT_EQ(second.code, 1);
  const auto result = nlohmann::json::parse(first.out);
  EXPECT_EQ(result.at("ranks"), 4);
  EXPECT_EQ(result.at("hosts"), 2);
  ASSERT_EQ(result.at("pairs").size(), 6U);
  for (const auto& pair : result.at("pairs")) {
    const double rate = pair.at("gb_per_second").get<double>();
    const auto host_of = [&](int which) { return pair.at("ranks").at(which).get<int>() / 2; };
    if (host_of(0) == host_of(1)) {
      EXPECT_EQ(pair.at("transport"), "shared memory");
      EXPECT_GT(rate, 0.04) << pair;
    } else {
      EXPECT_THAT(pair.at("transport").get<std::string>(), HasSubstr("gloo"));
      EXPECT_LT(rate, 0.03) << pair;  // 200 Mbit/s are 0.025 GB/s; busy cores make them fewer
      EXPECT_GT(rate, 0.003) << pair;
    }
  }
  EXPECT_THAT(first.err, HasSubstr("below the 1 asked for"));
  EXPECT_THAT(first.err, testing::Not(HasSubstr("exited with code")));
}

// A name of several addresses, of which only one leads to host 0.
TEST_F(Hosts, MeetAtWhicheverAddressOfANameAnswers) {
  hosts_.resolve(0, "node0", TwoHosts::address(0));
  hosts_.resolve(1, "node0", "10.213.17.77");  // nobody's
  hosts_.resolve(1, "node0", TwoHosts::address(0));
  const auto first = launch(0, {"bandwidth", "--max-mib", "1"}, 1, "node0");
  const auto second = launch(1, {"bandwidth", "--max-mib", "1"}, 1, "node0");
  const Ended ended = first->finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(second->finish().code, 0);
}

TEST_F(Hosts, MeetWhereTheFirstAddressOfANameIsSilent) {
  for (const int host : {0, 1}) {
    hosts_.resolve(host, "node0", TwoHosts::silent_address());
    hosts_.resolve(host, "node0", TwoHosts::address(0));
    if (!hosts_.lead_nowhere(host)) {
      GTEST_SKIP() << "SKIPPED: no address here that never answers (/etc/gai.conf, ip neigh)";
    }
  }
  const auto first = launch(0, {"bandwidth", "--max-mib", "1"}, 1, "node0");
  const auto second = launch(1, {"bandwidth", "--max-mib", "1"}, 1, "node0");
  const Ended ended = first->finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_LT(ended.seconds, 15);  // of the 30 that a rank would wait for the silent one
  EXPECT_EQ(second->finish().code, 0);
}

/// Runs of a model whose parameters are more than its activations.
class HostsWithAWideModel : public Hosts {
 protected:
  // Two steps of four samples, into output(strategy).
  void train_on_both(const std::string& strategy, int ranks, const Arguments& more = {}) const {
    Arguments run = train(output(strategy), "2") +
                    Arguments{"--model.init",        "random", "--parallel.strategy", strategy,
                              "--checkpoint.at_end", "false"} +
                    more;
    std::replace(run.begin(), run.end(), kModel, std::string("recipes/models/wide-bloom"));
    std::replace(run.begin(), run.end(), std::string("12"), std::string("4"));  // samples a step
    const auto [first, second] = on_both(run, ranks);
    EXPECT_EQ(first.code, 0) << first.err;
  }
};

// Ranks of one host share what is gathered; here each has its own.
TEST_F(HostsWithAWideModel, TheMoreIsShardedTheLessARankHolds) {
  // Above what the program holds without a model.
  const auto memory = [&](const std::string& strategy) {
    train_on_both(strategy, 1);
    const auto summary = nlohmann::json::parse(read_file(output(strategy) / "summary.json"));
    return summary.at("max_peak_bytes").get<double>() - summary.at("constant_bytes").get<double>();
  };
  const double shard_grad_op = memory("shard_grad_op");
  EXPECT_LT(memory("full_shard"), 0.95 * shard_grad_op);
  EXPECT_LT(shard_grad_op, 0.95 * memory("no_shard"));
}

// In fp32: what crosses the link is sums of gradients alone under HYBRID_SHARD, and under
// FULL_SHARD parameters too, twice.
TEST_F(HostsWithAWideModel, HybridShardIsFasterThanFullShardAcrossASlowLink) {
  if (!hosts_.shape("300mbit")) {
    GTEST_SKIP() << "SKIPPED: this kernel does not shape links (tc qdisc tbf)";
  }
  const auto step_seconds = [&](const std::string& strategy) {
    train_on_both(strategy, 2, {"--precision.param_dtype", "float32"});
    return column(output(strategy), "step_seconds").at(1);
  };
  EXPECT_LT(step_seconds("hybrid_shard"), 0.8 * step_seconds("full_shard"));
}

TEST(HostFlags, AreChecked) {
  const auto refused = [](const Arguments& flags, const std::string& why) {
    EXPECT_THAT(expect_code(64, Arguments{"launch", "-n", "1"} + flags +
                                    Arguments{"train", "recipes/stories260k-squad.toml"})
                    .err,
                HasSubstr(why));
  };
  refused({"--nnodes", "0"}, "--nnodes");
  refused({"--nnodes=2", "--node_rank", "2", "--master_addr=a_b"}, "host 2 of 2");  // as torchrun
  refused({"--nnodes", "2", "--node-rank", "2", "--master-addr", "a"}, "host 2 of 2");
  refused({"--nnodes", "2"}, "--master-addr");
  refused({"--node-rank", "1"}, "--nnodes");
  refused({"--nnodes", "2", "--master-addr", "a", "--port", "29500"}, "excludes");
  refused({"--nnodes", "2", "--master-addr", "a", "--master-port", "0"}, "--master-port");
}

TEST(HostFlags, AskForNoAddressOfOneHost) {
  EXPECT_EQ(expect_code(0, {"launch", "--nnodes", "1", "--nproc_per_node", "2", "--", "printenv",
                            "MASTER_ADDR"})
                .out,
            "127.0.0.1\n127.0.0.1\n");
}

}  // namespace
}  // namespace sherd::test
