#pragma once
// What one item of a check found.

#include <string>
#include <vector>

namespace llm::check {

/// A property of a run that holds or does not. `measured` and `limit` are in `unit`; which side of
/// the limit is right, the message says.
struct CheckItem {
  std::string name;
  bool ok = false;
  double measured = 0;
  double limit = 0;
  std::string unit;
  std::string message;
};

/// As `sherd check --json` prints them: {ok, items}.
[[nodiscard]] std::string to_json(const std::vector<CheckItem>& items);
/// A line for people: "ok    loss_falls             2.31 (limit 4.02 nats): …".
[[nodiscard]] std::string to_text(const CheckItem& item);
[[nodiscard]] bool all_ok(const std::vector<CheckItem>& items);

}  // namespace llm::check
