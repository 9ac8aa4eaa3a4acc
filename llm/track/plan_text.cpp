#include "llm/track/plan_text.h"

#include <sstream>

namespace llm::track {

namespace {

struct Units {
  std::string first;
  std::string last;
  int count = 0;
  std::string what;
};

std::string line_of(const Units& units) {
  if (units.count == 0) {
    return "";
  }
  const std::string who = units.count == 1 ? units.first
                                           : units.first + " to " + units.last + " (" +
                                                 std::to_string(units.count) + " units), each";
  return who + ": " + units.what + "\n";
}

}  // namespace

std::string short_plan(const std::string& plan) {
  std::string text;
  Units units;
  std::istringstream lines(plan);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    const std::string name = line.substr(0, colon);
    const std::string what = colon == std::string::npos ? "" : line.substr(colon + 2);
    if (units.count == 0 || what != units.what) {
      text += line_of(units);
      units = {name, name, 0, what};
    }
    units.last = name;
    ++units.count;
  }
  return text + line_of(units);
}

}  // namespace llm::track
