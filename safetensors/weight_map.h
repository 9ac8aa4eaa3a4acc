#pragma once
// `model.safetensors.index.json`: which file of a model folder holds which tensor. No LibTorch.

#include <cstdint>
#include <map>
#include <string>

#include "files/strict_json.h"

namespace sherd::detail {

/// Tensor name → file name, a plain name that ends in ".safetensors".
using WeightMap = std::map<std::string, std::string, std::less<>>;

/// Reads and checks an index file of `file_bytes` bytes; `path` is for messages. What else than
/// `weight_map` stands in it is ignored. Throws Error(BadData) naming the place, and whatever
/// `read` throws.
WeightMap parse_weight_map(const std::string& path, uint64_t file_bytes,
                           const files::ReadBytes& read);

}  // namespace sherd::detail
