// The keys of [adapter]: the fields of PEFT's LoraConfig.

#include "llm/config/fields.h"
#include "llm/config/schema_parts.h"

namespace llm::config {

namespace {

constexpr double kMaxRank = 65'536;
constexpr double kMaxLayer = 1e6;

// A field whose value belongs to the run, and does nothing without an adapter.
Field adapter_field(const AdapterSection& adapter, std::string name, Value value, std::string doc) {
  return {.name = std::move(name),
          .slot = std::move(value),
          .doc = std::move(doc),
          .on_resume = OnResume::Fixed,
          .idle = no_effect(adapter.kind == AdapterKind::None, "adapter.kind is none")};
}

}  // namespace

Table adapter_fields(AdapterSection& adapter) {
  const auto field = [&](const char* name, Value value, const char* doc) {
    return adapter_field(adapter, name, std::move(value), doc);
  };
  Field path = field("path", string(adapter.path),
                     "PEFT folder to start from; its adapter_config.json then sets the other keys, "
                     "but for dropout");
  path.on_resume = OnResume::Free;
  path.of_host = true;
  path.default_words = "a fresh adapter, which changes nothing at first";
  Field layers_pattern = field("layers_pattern", strings(adapter.layers_pattern),
                               "name of the list of layers, for adapter.layers; empty: any name");
  if (layers_pattern.idle.empty()) {
    layers_pattern.idle = no_effect(adapter.layers.empty(), "adapter.layers is empty");
  }
  return {{
      {.name = "kind",
       .slot = choice<AdapterKind>(adapter.kind,
                                   {{"none", AdapterKind::None}, {"lora", AdapterKind::Lora}},
                                   {"qlora", "dora", "pissa", "olora", "loftq", "lora_ga", "corda",
                                    "eva", "ia3", "vera", "oft", "prompt_tuning"}),
       .doc = "none: train the model; lora: freeze it, and train a product of two small matrices "
              "beside each chosen linear map",
       .on_resume = OnResume::Fixed},
      std::move(path),
      field("rank", integer(adapter.rank, between(1, kMaxRank)), "inner size of each product"),
      field("alpha", number(adapter.alpha, above(0)), "the product is scaled by alpha / rank"),
      field("dropout", number(adapter.dropout, {.least = 0, .most = 1, .below_most = true}),
            "share of the adapter's inputs that training sets to 0; drawn by sample and position, "
            "so the same on any number of ranks"),
      field("targets", names_or_pattern(adapter.targets),
            "linear maps to adapt: a list of names or last parts of names; all-linear: all but the "
            "head; another string: a regular expression for whole names"),
      field("exclude", names_or_pattern(adapter.exclude),
            "linear maps to leave out, in the same words"),
      field("rank_stabilized", flag(adapter.rank_stabilized),
            "scale by alpha / sqrt(rank) (rsLoRA)"),
      field("rank_pattern", strings(adapter.rank_pattern),
            "ranks of single maps, as PATTERN=RANK; the pattern is a regular expression for a name "
            "or its last parts, the first that matches counts"),
      field("alpha_pattern", strings(adapter.alpha_pattern), "the same for alpha: PATTERN=ALPHA"),
      field("layers", integers(adapter.layers, between(0, kMaxLayer)),
            "numbers of the layers to adapt, from 0; empty: all. Only with a list of targets"),
      std::move(layers_pattern),
      field("modules_to_save", strings(adapter.modules_to_save),
            "modules to train whole, such as embed_tokens or lm_head"),
  }};
}

}  // namespace llm::config
