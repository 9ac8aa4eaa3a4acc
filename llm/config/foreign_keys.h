#pragma once
// Keys that other training tools have for what is configured here.

#include <string>
#include <vector>

namespace llm::config {

/// A key of another tool, and the keys that do the same here.
struct ForeignKey {
  std::string name;               ///< "learning_rate"; "eval.batch_size" where the section matters
  std::vector<std::string> keys;  ///< "optim.lr"; empty: the remark says all
  std::string remark = {};        ///< how a value is to be written here; may be empty
};

/// All that are known: of Hugging Face's Trainer and TRL, axolotl, torchtune, torchtitan, DeepSpeed
/// and nanoGPT.
[[nodiscard]] const std::vector<ForeignKey>& foreign_keys();

/// The entry of `key`, "section.key" or without a section, where - and _ are the same and case does
/// not count; null if no other tool has such a key.
[[nodiscard]] const ForeignKey* foreign_key(const std::string& key);

/// "; here it is optim.lr", with `mark` before each key.
[[nodiscard]] std::string name_here(const ForeignKey& foreign, const std::string& mark);

}  // namespace llm::config
