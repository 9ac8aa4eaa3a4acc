#include <array>
#include <exception>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "state/transfer.h"
#include "step/step.h"

namespace sherd {

namespace {

// What rank 0 found of one tensor, sent to all ranks before the tensor is.
enum class Verdict : int64_t { Travels, Faulty, SourceFailed };

// Rank 0's side.
class Reader {
 public:
  explicit Reader(const TensorSource& source) : source_(source) {}

  // Takes the tensor from the source and says whether it fits.
  Verdict read(const detail::StateEntry& entry) {
    try {
      return find(entry);
    } catch (...) {
      failure_ = std::current_exception();
      return Verdict::SourceFailed;
    }
  }

  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  void forget_tensor() { whole_ = at::Tensor(); }

  // Throws the failure, if there was one.
  void check() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    if (!faults_.empty()) {
      throw Error(ExitCode::BadData, "the tensors are not those of this model:" + faults_);
    }
  }

 private:
  Verdict find(const detail::StateEntry& entry) {
    whole_ = source_(entry.name);
    for (size_t i = 0; !whole_.defined() && i < entry.aliases.size(); ++i) {
      whole_ = source_(entry.aliases[i]);
    }
    const std::string fault = entry.mismatch(whole_);
    if (!fault.empty()) {
      faults_ += "\n  " + fault;
    }
    if (!faults_.empty()) {
      return Verdict::Faulty;  // after a fault nothing is sent any more
    }
    whole_ = whole_.detach().reshape({-1});
    return Verdict::Travels;
  }

  const TensorSource& source_;
  at::Tensor whole_;
  std::string faults_;
  std::exception_ptr failure_;
};

}  // namespace

void load_from_rank0(ShardedModule& model, const TensorSource& source) {
  World& world = model.world();
  detail::ShardWriter writer(detail::engine_of(model).step, "load_from_rank0");
  Reader reader(source);
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  for (detail::StateEntry& entry : entries) {
    std::array<int64_t, 2> header{};  // verdict, dtype
    if (world.rank() == 0) {
      header[0] = static_cast<int64_t>(reader.read(entry));
      header[1] = reader.whole().defined() ? static_cast<int64_t>(reader.whole().scalar_type()) : 0;
    }
    world.broadcast(header.data(), sizeof header, 0);
    const auto verdict = static_cast<Verdict>(header[0]);
    if (verdict == Verdict::SourceFailed) {
      break;
    }
    if (verdict == Verdict::Travels) {
      detail::broadcast_elements(
          world, 0, reader.whole(), entry.numel(), static_cast<c10::ScalarType>(header[1]),
          [&](int64_t first, const at::Tensor& values) { entry.write(first, values); });
    }
    reader.forget_tensor();
  }
  static_cast<void>(detail::agree(world, "[load_from_rank0] loading failed", [&]() -> std::string {
    reader.check();
    return "";
  }));
  for (detail::StateEntry& entry : entries) {
    entry.finish_writing();
  }
  writer.publish();
}

}  // namespace sherd
