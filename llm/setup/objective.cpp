#include "llm/setup/objective.h"

#include "llm/model/dpo.h"

namespace llm::setup {

namespace {

model::DpoLoss loss_of(config::PreferenceLoss loss) {
  switch (loss) {
    case config::PreferenceLoss::Ipo:
      return model::DpoLoss::Ipo;
    case config::PreferenceLoss::Hinge:
      return model::DpoLoss::Hinge;
    case config::PreferenceLoss::Robust:
      return model::DpoLoss::Robust;
    default:
      return model::DpoLoss::Sigmoid;
  }
}

}  // namespace

std::unique_ptr<sherd::Objective> objective_of(const config::RunConfig& config) {
  if (config.train.objective != config::Objective::Dpo) {
    return nullptr;
  }
  const config::PreferenceSection& preference = config.preference;
  return std::make_unique<model::Dpo>(
      model::DpoOptions{loss_of(preference.loss), preference.beta, preference.label_smoothing});
}

bool reference_is_base(const config::RunConfig& config) {
  const config::AdapterSection& adapter = config.adapter;
  return adapter.kind != config::AdapterKind::None && adapter.path.empty() &&
         adapter.modules_to_save.empty();
}

}  // namespace llm::setup
