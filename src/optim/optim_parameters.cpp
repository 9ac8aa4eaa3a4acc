#include "sherd/optim.h"
#include "step/step.h"

namespace sherd {

torch::OrderedDict<std::string, at::Tensor> optim_parameters(ShardedModule& model) {
  detail::Step& step = detail::engine_of(model).step;
  step.require_between_steps("optim_parameters");
  step.check_not_torn("optim_parameters");
  return step.hand_out_masters();
}

}  // namespace sherd
