// SHA-256 of weights and moments after five steps, over strategies, dtypes, ranks, accumulation,
// prefetching and ways to exchange, against those recorded in `recorded.txt`: a change of the
// engine that is not meant to change results changes none of them. The model computes the same bits
// on every processor (exact_net.h), so that one record serves all.
//
//     SHERD_RECORD=1 build/dev/tests/fingerprints_test      writes recorded.txt anew

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>

#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <torch/optim/sgd.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/fingerprints/exact_net.h"
#include "tests/support/meshes.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

constexpr int kSteps = 5;
const char* const kRecord = SHERD_TEST_SOURCE_DIR "/tests/fingerprints/recorded.txt";

/// How the three micro-batches of a step are accumulated.
enum class Accumulation { None, EachReduced, NoSync, NoAllReduce };

/// What is done differently, apart from that.
enum class Variant {
  Plain,
  Clipped,
  Checkpointed,
  UsedTwice,
  NarrowMoments,
  InBackward,
  KeptDtype,
  FrozenPart,
  TorchSgd,
};

struct Case {
  Strategy strategy = Strategy::FullShard;
  at::ScalarType dtype = at::kFloat;
  Accumulation accumulation = Accumulation::None;
  Variant variant = Variant::Plain;
};

std::string name_of(const Case& c) {
  static const std::map<Accumulation, const char*> accumulations = {
      {Accumulation::None, "one-micro-batch"},
      {Accumulation::EachReduced, "three-reduced"},
      {Accumulation::NoSync, "three-no-sync"},
      {Accumulation::NoAllReduce, "three-no-all-reduce"}};
  static const std::map<Variant, const char*> variants = {{Variant::Plain, "plain"},
                                                          {Variant::Clipped, "clipped"},
                                                          {Variant::Checkpointed, "checkpointed"},
                                                          {Variant::UsedTwice, "used-twice"},
                                                          {Variant::NarrowMoments, "bf16-moments"},
                                                          {Variant::InBackward, "in-backward"},
                                                          {Variant::KeptDtype, "kept-dtype"},
                                                          {Variant::FrozenPart, "frozen-part"},
                                                          {Variant::TorchSgd, "torch-sgd"}};
  return std::string(sherd::name_of(c.strategy)) + " " + c10::toString(c.dtype) + " " +
         accumulations.at(c.accumulation) + " " + variants.at(c.variant);
}

ShardOptions options_of(const Case& c, int prefetch_depth) {
  ShardOptions options;
  options.strategy = c.strategy;
  options.precision.param_dtype = c.dtype;
  options.prefetch_depth = prefetch_depth;
  if (c.variant == Variant::KeptDtype) {
    options.precision.keeps_own_dtype = [](const std::string& name) {
      return name.find("scale") != std::string::npos;
    };
  }
  options.units =
      unit_policy::every_unit({.checkpoint_activations = c.variant == Variant::Checkpointed});
  return options;
}

// Updates a step, whichever optimizer the case has.
class Updater {
 public:
  Updater(const Case& c, Sharded<ExactNet>& model)
      : model_(model), clipped_(c.variant == Variant::Clipped) {
    if (c.variant == Variant::TorchSgd) {
      sgd_.emplace(optim_parameters(model).values(),
                   torch::optim::SGDOptions(0.0625).momentum(0.5));
      return;
    }
    const std::vector<ParamGroup> groups = {
        {[](const std::string& name) { return name.find("scale") != std::string::npos; },
         {.lr = 0.0078125, .weight_decay = 0}}};
    adamw_.emplace(
        model, AdamWOptions{.lr = 0.015625}, groups,
        AdamWMode{.moments_dtype = c.variant == Variant::NarrowMoments ? at::kBFloat16 : at::kFloat,
                  .in_backward = c.variant == Variant::InBackward});
    if (c.dtype == at::kHalf) {
      scaler_.emplace(model, GradScalerOptions{.init_scale = 1024, .growth_interval = 2});
    }
  }

  at::Tensor scale(const at::Tensor& loss) { return scaler_ ? scaler_->scale(loss) : loss; }

  void step() {
    if (scaler_) {
      scaler_->unscale();
    }
    if (clipped_) {
      clip_grad_norm(model_, 0.25);
    }
    if (scaler_) {
      scaler_->step(*adamw_);
    } else if (adamw_) {
      adamw_->step();
    } else {
      sgd_->step();
      sgd_->zero_grad();
      return;
    }
    adamw_->zero_grad();
  }

  [[nodiscard]] std::vector<MomentShard> moments() const {
    return adamw_ ? adamw_->moments() : std::vector<MomentShard>();
  }

 private:
  Sharded<ExactNet>& model_;
  bool clipped_;
  std::optional<AdamW> adamw_;
  std::optional<GradScaler> scaler_;
  std::optional<torch::optim::SGD> sgd_;
};

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())};
}

std::string sha256(const std::string& bytes) {
  unsigned char digest[32];
  EVP_Digest(bytes.data(), bytes.size(), digest, nullptr, EVP_sha256(), nullptr);
  std::string text;
  for (const unsigned char byte : digest) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

// A rank's parts of parameters and moments, one behind the other, each with its place and its size.
class Parts {
 public:
  void add(const std::string& name, int64_t begin, const at::Tensor& values) {
    const std::string bytes = bytes_of(values);
    names_.push_back(name);
    text_ << begin << ' ' << bytes.size() << ' ' << bytes;
  }
  // Those of a row of the mesh, joined by name and place: what is hashed does not depend on how it
  // was cut. Collective: one exchange, because process groups take long for each.
  std::string joined(World& world, int row_size) const {
    const std::vector<std::string> texts = world.all_gather(text_.str());
    std::vector<std::istringstream> row;
    for (int rank = 0; rank < row_size; ++rank) {
      row.emplace_back(texts[static_cast<size_t>(rank)]);
    }
    std::string all;
    for (const std::string& name : names_) {
      std::map<int64_t, std::string> by_place;
      for (std::istringstream& rank : row) {
        int64_t begin = 0;
        size_t size = 0;
        rank >> begin >> size;
        rank.get();
        std::string bytes(size, '\0');
        rank.read(bytes.data(), static_cast<std::streamsize>(size));
        by_place[begin] += bytes;
      }
      all += name + '\0';
      for (const auto& [place, bytes] : by_place) {
        all += bytes;
      }
    }
    return all;
  }

 private:
  std::vector<std::string> names_;
  std::ostringstream text_;
};

std::string digest_of(World& world, int row_size, const ShardedModule& model,
                      const std::vector<MomentShard>& moments) {
  Parts parts;
  std::map<std::string, int64_t> begins;
  for (const ParameterShard& shard : model.parameter_shards()) {
    begins[shard.name] = shard.begin;
    parts.add(shard.name, shard.begin, shard.value);
  }
  for (const MomentShard& moment : moments) {
    const int64_t begin = begins.at(moment.name);
    parts.add(moment.name, begin, moment.exp_avg);
    parts.add(moment.name, begin, moment.exp_avg_sq);
  }
  return sha256(parts.joined(world, row_size));
}

void backward_of_step(Sharded<ExactNet>& model, Updater& updater, const Case& c, int step) {
  const World& world = model.world();
  const int micro_batches = c.accumulation == Accumulation::None ? 1 : 3;
  for (int micro = 0; micro < micro_batches; ++micro) {
    const bool last = micro + 1 == micro_batches;
    model.set_requires_gradient_sync(last || c.accumulation != Accumulation::NoSync);
    model.set_requires_all_reduce(last || c.accumulation != Accumulation::NoAllReduce);
    const int64_t index = (step * micro_batches + micro) * world.size() + world.rank();
    const auto [x, y] = exact_example(index);
    const at::Tensor loss = at::mse_loss(model(x).to(at::kFloat), y, at::Reduction::Sum);
    updater.scale(loss).backward();
  }
}

std::string fingerprint(World world, const Case& c, int prefetch_depth) {
  ExactNet net(c.variant == Variant::UsedTwice);
  if (c.variant == Variant::FrozenPart) {
    net->blocks[1]->up.set_requires_grad(false);
    net->bias.set_requires_grad(false);
  }
  auto model = fully_shard(net, mesh_for(world, c.strategy), options_of(c, prefetch_depth));
  model.set_gradient_divide_factor(1.0);
  Updater updater(c, model);
  for (int step = 0; step < kSteps; ++step) {
    backward_of_step(model, updater, c, step);
    updater.step();
  }
  return digest_of(world, shard_size_for(world.size(), c.strategy), model, updater.moments());
}

std::vector<Case> accumulation_cases() {
  std::vector<Case> cases;
  for (const Strategy strategy : kStrategies) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto accumulation : {Accumulation::None, Accumulation::EachReduced,
                                      Accumulation::NoSync, Accumulation::NoAllReduce}) {
        cases.push_back({strategy, dtype, accumulation});
      }
    }
  }
  return cases;
}

std::vector<Case> variant_cases() {
  std::vector<Case> cases;
  for (const Strategy strategy : {Strategy::FullShard, Strategy::NoShard, Strategy::HybridShard}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto variant :
           {Variant::Clipped, Variant::Checkpointed, Variant::UsedTwice, Variant::NarrowMoments,
            Variant::InBackward, Variant::KeptDtype, Variant::FrozenPart, Variant::TorchSgd}) {
        const bool one = variant == Variant::InBackward;
        cases.push_back(
            {strategy, dtype, one ? Accumulation::None : Accumulation::EachReduced, variant});
      }
    }
  }
  return cases;
}

// Digests by world size and case, read from the record, or written to it.
class Record {
 public:
  Record() : writing_(std::getenv("SHERD_RECORD") != nullptr) {
    std::ifstream file(kRecord);
    for (std::string line; !writing_ && std::getline(file, line);) {
      const size_t at = line.rfind(' ');
      known_[line.substr(0, at)] = line.substr(at + 1);
    }
  }
  ~Record() {
    if (writing_) {
      std::ofstream file(kRecord);
      for (const auto& [key, digest] : known_) {
        file << key << ' ' << digest << '\n';
      }
    }
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void expect(int ranks, const Case& c, const std::string& digest, const std::string& how) {
    const std::string key = std::to_string(ranks) + " " + name_of(c);
    if (writing_) {
      known_.emplace(key, digest);
    }
    const auto found = known_.find(key);
    EXPECT_TRUE(found != known_.end()) << "not recorded: " << key;
    if (found != known_.end()) {
      EXPECT_EQ(found->second, digest) << key << ", " << how;
    }
  }

 private:
  bool writing_;
  std::map<std::string, std::string> known_;
};

Record& record() {
  static Record kept;
  return kept;
}

class Fingerprints : public testing::TestWithParam<int> {};

void expect_over_threads(int ranks, const std::vector<Case>& cases, int prefetch_depth) {
  std::vector<std::string> digests(cases.size());
  const auto run = [&](World world) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string digest = fingerprint(world, cases[i], prefetch_depth);
      if (world.rank() == 0) {
        digests[i] = digest;
      }
    }
  };
  if (ranks == 1) {
    run(World::alone());
  } else {
    run_ranks(ranks, run);
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    record().expect(ranks, cases[i], digests[i],
                    "threads, prefetch depth " + std::to_string(prefetch_depth));
  }
}

TEST_P(Fingerprints, OfThreads) {
  for (const int prefetch_depth : {0, 1, 3}) {
    expect_over_threads(GetParam(), accumulation_cases(), prefetch_depth);
  }
  expect_over_threads(GetParam(), variant_cases(), 1);
}

// Worlds of three add nothing here: threads have them.
TEST_P(Fingerprints, OfProcesses) {
  if (GetParam() == 3) {
    return;
  }
  std::vector<Case> cases = variant_cases();
  for (const Case& c : accumulation_cases()) {
    if (c.dtype == at::kBFloat16) {
      cases.push_back(c);
    }
  }
  for (const Transport transport : kTransports) {
    const TempFolder folder;
    const auto statuses = run_processes_over(transport, GetParam(), [&](World world) {
      std::ofstream out;
      if (world.rank() == 0) {
        out.open(folder.path() / "digests");
      }
      for (const Case& c : cases) {
        const std::string digest = fingerprint(world, c, 1);
        if (world.rank() == 0) {
          out << digest << '\n';
        }
      }
    });
    ASSERT_EQ(statuses, std::vector<int>(static_cast<size_t>(GetParam()), 0));
    std::ifstream in(folder.path() / "digests");
    for (const Case& c : cases) {
      std::string digest;
      std::getline(in, digest);
      record().expect(GetParam(), c, digest,
                      transport == Transport::SharedMemory ? "shared memory" : "process groups");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fingerprints, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace sherd::test
