#include "llm/plan/step_time.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>

#include "llm/plan/meta_run.h"
#include "llm/plan/moved_bytes.h"
#include "llm/plan/operator_watch.h"
#include "ops/q8_0.h"

namespace llm::plan {

namespace {

using sherd::Collective;

// The clock of a rank, and that of its host's link.
class Timeline {
 public:
  Timeline(const PlannedRun& run, const Links& links) : run_(run), links_(links) {}

  void compute(double seconds) { now_ += seconds; }

  void begin(const Collective& collective) {
    link_is_free_ = std::max(link_is_free_, now_) + seconds_of(collective);
    ends_[key_of(collective)] = link_is_free_;
  }

  void wait_for(const Collective& collective) {
    const auto found = ends_.find(key_of(collective));
    if (found != ends_.end() && found->second > now_) {
      exposed_ += found->second - now_;
      now_ = found->second;
    }
  }

  /// Copies from and to the host, both ways at once, beside the last `seconds`, which they may
  /// outlast.
  void copy_beside(double seconds, double from_host_bytes, double to_host_bytes) {
    const double rate = links_.pinned_bytes_per_second;
    const double copying = rate > 0 ? std::max(from_host_bytes, to_host_bytes) / rate : 0;
    exposed_ += std::max(0.0, copying - seconds);
    now_ += std::max(0.0, copying - seconds);
  }

  void start_again() {
    now_ = exposed_ = link_is_free_ = 0;
    ends_.clear();
  }

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] double exposed() const { return exposed_; }

 private:
  using Key = std::tuple<Collective::Operation, int, int, int>;  // with the group
  static Key key_of(const Collective& collective) {
    return {collective.operation, collective.segment, collective.ranks, collective.stride};
  }

  // Of rank 0.
  [[nodiscard]] int peers_on_host(const Collective& collective) const {
    return std::min(collective.ranks - 1, (run_.ranks.local_size - 1) / collective.stride);
  }

  // Gathers, and NCCL's reduce-scatter, go from rank to rank and from host to host.
  [[nodiscard]] bool is_ring(const Collective& collective) const {
    return collective.operation == Collective::Operation::Gather || sums_natively(run_);
  }

  // What a rank sends, and receives at the same time: to its host's others over its own link, to
  // those of other hosts over one that its host's ranks share. A ring brings each shard to a host
  // once, whatever the number of ranks there, and hands it on to each of them; or takes each
  // piece's sum from a host once.
  [[nodiscard]] double seconds_of(const Collective& collective) const {
    const int peers = collective.ranks - 1;
    if (peers == 0) {
      return 0;
    }
    const bool is_gather = collective.operation == Collective::Operation::Gather;
    if (!is_gather && collective.operation != Collective::Operation::Reduction) {
      return links_.latency_seconds;
    }
    const auto bytes = static_cast<double>(collective.bytes);
    const double bytes_to_a_peer = is_gather ? bytes : bytes / peers;
    const bool ring = is_ring(collective);
    const int near = peers_on_host(collective);
    const double elsewhere = (peers - near) * bytes_to_a_peer;
    const sherd::RankGroup group{0, collective.stride, collective.ranks};
    const int of_a_host = group.ranks_of_a_host(run_.ranks.local_size);
    const double on_host = (ring && of_a_host > 1 ? peers : near) * bytes_to_a_peer;
    const double from_host = elsewhere * run_.ranks.local_size / (ring ? of_a_host : 1);
    const auto over = [](double sent, double rate) { return rate > 0 ? sent / rate : 0; };
    return links_.latency_seconds + (ring ? hops_seconds(collective.ranks, of_a_host) : 0) +
           std::max(over(on_host, links_.rank_bytes_per_second),
                    over(from_host, links_.host_bytes_per_second));
  }

  [[nodiscard]] double hops_seconds(int ranks, int of_a_host) const {
    const int hosts = ranks / of_a_host;
    return (ranks - hosts) * links_.hop_seconds + (hosts - 1) * links_.host_hop_seconds;
  }

  const PlannedRun& run_;
  const Links& links_;
  double now_ = 0;
  double exposed_ = 0;
  double link_is_free_ = 0;
  std::map<Key, double> ends_;
};

class TimedCollectives final : public sherd::CollectiveObserver {
 public:
  explicit TimedCollectives(Timeline& timeline) : timeline_(timeline) {}
  void started(const Collective& collective) override { timeline_.begin(collective); }
  void waiting(const Collective& collective) override { timeline_.wait_for(collective); }

 private:
  Timeline& timeline_;
};

double elements_of(const model::CausalLm& module) {
  double elements = 0;
  for (const at::Tensor& parameter : module->parameters()) {
    elements += static_cast<double>(sherd::ops::q8_0::numbers_in(parameter));
  }
  return elements;
}

double trained_elements_of(const model::CausalLm& module) {
  double elements = 0;
  for (const at::Tensor& parameter : module->parameters()) {
    elements += parameter.requires_grad() ? static_cast<double>(parameter.numel()) : 0;
  }
  return elements;
}

}  // namespace

double elements_of(const PlannedRun& run) {
  return elements_of(meta_module(run));
}

int shards_of(const PlannedRun& run) {
  return sherd::Mesh::of_strategy(sherd::World::fake(run.ranks), run.sharding.strategy,
                                  run.shard_size)
      .shard_size();
}

namespace {

struct Besides {
  double elements = 0;  // of the trained parameters
  double operators = 0;
};

double seconds_of_kind(const PlannedRun& run, const Rates& rates, const char* kind, double amount,
                       const KernelCall& kernel) {
  const std::string bits = bits_of(run.sharding.precision.param_dtype.value_or(c10::kFloat));
  return rates.seconds(
      {.kind = kind + bits, .amount = amount, .moved_bytes = kernel.bytes, .kernels = {kernel}});
}

double update_seconds(const PlannedRun& run, const Rates& rates, double shard) {
  return seconds_of_kind(run, rates, step_kind::kOptimizer, shard,
                         {.kernel = Kernel::AdamW, .bytes = shard * update_bytes_a_parameter(run)});
}

// The norm reads all sums of gradients once.
double clip_seconds(const PlannedRun& run, const Rates& rates, double shard) {
  const auto element = static_cast<double>(c10::elementSize(run.sharding.precision.reduce_dtype));
  return seconds_of_kind(run, rates, step_kind::kClip, shard,
                         {.bytes = rates.gpu ? shard * element : 0});
}

// What no operator is, and not the optimizer. Ranks of a host without a CPU's shared memory
// exchange over links, and sum what they received.
double seconds_besides(const PlannedRun& run, const Rates& rates, const Besides& step) {
  const int shards = shards_of(run);
  const double shard = step.elements / shards;
  const auto seconds = [&](const char* kind, double amount, double moved) {
    return seconds_of_kind(run, rates, kind, amount, {.bytes = moved});
  };
  const bool sums = run.ranks.local_size > 1 || run.ranks.device != c10::DeviceType::CPU;
  const int parts = shards > 1 ? shards : run.ranks.size;  // else replicas sum
  return clip_seconds(run, rates, shard) + seconds(step_kind::kBetween, step.operators, 0) +
         (sums ? seconds(step_kind::kExchange, step.elements,
                         sum_bytes(run, parts, step.elements / parts))
               : 0);
}

// Kernels of a captured graph follow each other without the host.
Rates rates_of_micro_batches(const PlannedRun& run, Rates rates) {
  if (run.cuda_graphs && rates.gpu) {
    rates.gpu->launch_seconds = 0;
  }
  return rates;
}

// A step on the meta device: its operators and collectives on a timeline.
class PlannedStep {
 public:
  PlannedStep(const PlannedRun& run, const Rates& rates, const Links& links)
      : run_(run),
        rates_(rates),
        micro_batch_rates_(rates_of_micro_batches(run, rates)),
        timeline_(run, links),
        module_(meta_module(run)),
        elements_(elements_of(module_)),
        trained_elements_(trained_elements_of(module_)),
        model_(meta_model(module_, run, std::make_shared<TimedCollectives>(timeline_))),
        optimizer_(model_, {}, {}, run.adamw) {}

  StepTime plan() {
    make_micro_batches();
    optimizer_.step();
    timeline_.start_again();
    {
      const OperatorWatch watch([&](const OperatorCall& call) { add(call); });
      make_micro_batches();
    }
    optimizer_.step();  // waits for the last sums
    const double shard = trained_elements_ / shards_of(run_);
    const double update = update_seconds(run_, rates_, shard);
    timeline_.compute(update);
    const double updated = resting_bytes_a_parameter(run_) + parameter_bytes_on_host(run_);
    const double fetched = shard * (updated + gradient_bytes_on_host(run_));
    const double written = shard * updated;
    if (offloads_to_disk(run_)) {  // pages, whose copies do not overlap
      timeline_.copy_beside(update, fetched + written, 0);
    } else {
      timeline_.copy_beside(update, fetched, written);
    }
    timeline_.compute(seconds_besides(run_, rates_, {trained_elements_, operators_}));
    const double frozen = (elements_ - trained_elements_) / shards_of(run_);
    return {timeline_.now(), timeline_.exposed(),
            shard * disk_bytes_a_parameter(run_) + frozen * disk_bytes_a_frozen_parameter(run_)};
  }

 private:
  void make_micro_batches() {
    optimizer_.zero_grad();
    const double parameters = elements_ / shards_of(run_) * parameter_bytes_on_host(run_);
    const double gradients = trained_elements_ / shards_of(run_) * gradient_bytes_on_host(run_);
    double earlier_sums = 0;
    for (const MicroBatch& batch : run_.micro_batches) {
      tokens_ = std::accumulate(batch.sample_tokens.begin(), batch.sample_tokens.end(), 0.0);
      model_.set_is_last_backward(&batch == &run_.micro_batches.back());
      const double begin = timeline_.now();
      const std::int64_t before = model_.memory().on_host_bytes();
      const at::Tensor loss = loss_of(model_, batch, run_.loss);
      // Pinned memory is used again: what the first forward takes is what each copies.
      parked_bytes_ =
          std::max(parked_bytes_, static_cast<double>(model_.memory().on_host_bytes() - before));
      timeline_.copy_beside(timeline_.now() - begin, parameters, parked_bytes_);
      const double forwarded = timeline_.now();
      loss.backward();
      timeline_.copy_beside(timeline_.now() - forwarded, parked_bytes_ + parameters + earlier_sums,
                            gradients);
      earlier_sums = gradients;
    }
  }

  void choose_attention(OperatorCall& call, const AlibiColumns& columns, bool is_backward) const {
    constexpr double kCopiesForward = 4, kCopiesBackward = 5;
    const double copies = is_backward ? kCopiesBackward : kCopiesForward;
    const bool is_served = run_.attention != sherd::ops::AttentionKernel::Cudnn || !call.has_window;
    call.attention = is_served ? run_.attention : sherd::ops::AttentionKernel::Flash;
    for (KernelCall& kernel : call.kernels) {
      kernel.operations *= columns.share;
      if (run_.attention == sherd::ops::AttentionKernel::Plain) {
        kernel = {Kernel::Product, kernel.operations,
                  bytes_of_scores(kernel.operations, is_backward)};
      }
    }
    if (columns.moved_bytes > 0) {
      call.kernels.push_back({.bytes = columns.moved_bytes / copies, .times = copies});
    }
  }

  // Of attention by blocks: the softmax reads and writes scores, which products write and read.
  [[nodiscard]] double bytes_of_scores(double operations, bool is_backward) const {
    constexpr double kOperationsForward = 4, kOperationsBackward = 10;  // per score and head value
    constexpr double kPassesForward = 4, kPassesBackward = 8;
    const auto element = static_cast<double>(
        c10::elementSize(run_.sharding.precision.param_dtype.value_or(c10::kFloat)));
    const double scores = operations / static_cast<double>(run_.model.shape.head_size) /
                          (is_backward ? kOperationsBackward : kOperationsForward);
    return scores * element * (is_backward ? kPassesBackward : kPassesForward);
  }

  void add(OperatorCall call) {
    if (call.kind.starts_with("attention")) {
      const bool is_backward = call.kind.starts_with("attention_backward");
      const AlibiColumns columns = alibi_columns(run_, tokens_, is_backward);
      call.amount *= columns.share;
      call.moved_bytes += columns.moved_bytes;
      choose_attention(call, columns, is_backward);
    }
    timeline_.compute(micro_batch_rates_.seconds(call));
    operators_ += call.amount > 0 ? 1 : 0;
  }

  const PlannedRun& run_;
  const Rates& rates_;
  Rates micro_batch_rates_;
  Timeline timeline_;
  model::CausalLm module_;
  double elements_;
  double trained_elements_;
  sherd::Sharded<model::CausalLm> model_;
  sherd::AdamW optimizer_;
  double operators_ = 0;
  double tokens_ = 0;        // of the micro-batch
  double parked_bytes_ = 0;  // activations of a micro-batch
};

}  // namespace

StepTime plan_step_time(const PlannedRun& run, const Rates& rates, const Links& links) {
  return PlannedStep(run, rates, links).plan();
}

}  // namespace llm::plan
