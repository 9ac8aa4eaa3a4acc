// The models of tests/data against what the reference implementation computed for them,
// without sharding: plain autograd over the operators.

#include <string>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/model/token_batch.h"
#include "sherd/safetensors.h"
#include "tests/llm/io/model_folders.h"

namespace llm::io {
namespace {

class GoldenTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("stories260k-hf", "tiny-llama3-hf", "tiny-bloom-hf"));

TEST_P(GoldenTest, LogitsLossAndGradientsAgree) {
  const std::string folder = kData + GetParam();
  const sherd::SafetensorsFile file(kData + "goldens/" + GetParam() + ".safetensors");
  const auto golden = [&](const std::string& name) { return file.read(*file.find(name)); };
  auto model = build_model(read_model_folder_config(folder));
  load_weights(*model, sherd::SafetensorsFolder(folder));

  const at::Tensor ids = golden("input_ids"), mask = golden("attention_mask");
  const at::Tensor labels = golden("labels");
  const model::TokenBatch batch = model::without_padding(ids, labels, mask);
  const at::Tensor real = mask.flatten().nonzero().squeeze(1);
  const at::Tensor logits = golden("logits").flatten(0, 1).index_select(0, real);
  const at::Tensor differences = model->logits(batch.ids_T, batch.documents).detach() - logits;
  EXPECT_LE(differences.abs().max().item<double>(), 1e-5 * logits.abs().max().item<double>());

  const at::Tensor loss = model->loss_sum(batch.ids_T, batch.labels_T, batch.documents) /
                          labels.slice(1, 1).ne(model::kIgnoredLabel).sum();
  EXPECT_NEAR(loss.item<double>(), golden("loss").item<double>(), 1e-5);
  loss.backward();
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor expected = golden("grad." + parameter.key());
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_LE((parameter.value().grad() - expected).norm().item<double>(),
              1e-5 * expected.norm().item<double>())
        << parameter.key();
  }
}

}  // namespace
}  // namespace llm::io
