#include "llm/train/interval.h"

namespace llm::train {

bool ActionInterval::is_due(std::int64_t step, bool time_is_up) const {
  switch (every_.unit) {
    case config::Every::Unit::Never:
      return false;
    case config::Every::Unit::Steps:
      return step % every_.count == 0;
    case config::Every::Unit::Epoch:
      return step % steps_per_epoch_ == 0;
    case config::Every::Unit::Time:
      return time_is_up;
  }
  return false;
}

}  // namespace llm::train
