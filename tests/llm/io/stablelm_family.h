#pragma once

#include "llm/families/family.h"

namespace llm::families {

/// StableLM 2, which the program does not have: the example of docs/adding-a-family.md.
[[nodiscard]] const Family& stablelm_family();

}  // namespace llm::families
