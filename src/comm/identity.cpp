#include "comm/identity.h"

#include "sherd/error.h"

namespace sherd {

const char* name_of(Collective::Operation operation) {
  switch (operation) {
    case Collective::Operation::Attach:
      return "attach";
    case Collective::Operation::Gather:
      return "all-gather";
    case Collective::Operation::Reduction:
      return "reduction";
    case Collective::Operation::Update:
      return "optimizer step";
    case Collective::Operation::AllReduce:
      return "all-reduce";
    case Collective::Operation::Barrier:
      return "barrier";
    case Collective::Operation::Connect:
      return "connecting the ranks";
    case Collective::Operation::Texts:
      return "all-gather of texts";
    case Collective::Operation::Broadcast:
      return "broadcast";
    case Collective::Operation::Send:
      return "send";
  }
  return "collective";
}

namespace detail {

void tell_out_of_step(const std::string& at, int rank, int other) {
  throw Error(ExitCode::RanksDisagree,
              at + ": ranks are out of step. Rank " + std::to_string(other) +
                  " has run other units, or in another order, than rank " + std::to_string(rank) +
                  ". Every rank must run the same units in the same order; "
                  "ShardOptions::debug names the first difference.");
}

}  // namespace detail

}  // namespace sherd
