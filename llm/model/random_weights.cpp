#include "llm/model/random_weights.h"

namespace llm::model {

void fill_random(sherd::ParameterInit& parameter, double std) {
  if (parameter.shape().size() > 1) {
    parameter.fill_normal(0, std);
  } else {
    parameter.fill_constant(parameter.name().ends_with("bias") ? 0 : 1);
  }
}

}  // namespace llm::model
