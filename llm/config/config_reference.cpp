// Prints the reference page of the configuration, docs/guide/configuration.md.

#include <iostream>

#include "llm/config/run_config.h"

int main() {
  std::cout << llm::config::reference_markdown();
}
