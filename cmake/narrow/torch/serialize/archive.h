#pragma once
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize
