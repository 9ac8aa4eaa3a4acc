#include "launch/host_list.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

constexpr std::size_t kMostHosts = 65536;

[[noreturn]] void refuse(std::string_view list, const std::string& why) {
  throw Error(ExitCode::Usage, "Slurm's list \"" + std::string(list) + "\": " + why);
}

std::optional<unsigned long> number(std::string_view digits) {
  unsigned long value = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || fault != std::errc{} || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return value;
}

/// Cuts at commas that stand outside brackets.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && !inside)) {
      parts.push_back(list.substr(start, i - start));
      start = i + 1;
    } else if (list[i] == '[' || list[i] == ']') {
      inside = list[i] == '[';
    }
  }
  return parts;
}

/// The numbers of one bracket, "01-03,7", each with the zeros its range starts with.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view list) {
  std::vector<std::string> all;
  for (const std::string_view range : split(ranges)) {
    const std::size_t dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const auto low = number(low_text);
    const auto high = dash == std::string_view::npos ? low : number(range.substr(dash + 1));
    if (!low || !high) {
      refuse(list, "\"" + std::string(range) + "\" is not a number or a range of numbers");
    }
    if (*high < *low || *high - *low >= kMostHosts || all.size() + (*high - *low) >= kMostHosts) {
      refuse(list, "the range " + std::string(range) + " runs backwards or is too long");
    }
    for (unsigned long offset = 0; offset <= *high - *low; ++offset) {
      const std::string digits = std::to_string(*low + offset);  // the last may be the largest
      all.push_back(std::string(low_text.size() - std::min(low_text.size(), digits.size()), '0') +
                    digits);
    }
  }
  return all;
}

/// Every host of one name with brackets: the text before the first bracket, times its ranges, times
/// the rest.
std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  std::vector<std::string> hosts{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    const std::string_view text = name.substr(0, open);
    if (text.find(']') != std::string_view::npos) {
      refuse(list, "a bracket is closed that was not opened");
    }
    std::vector<std::string> ranges{""};
    std::size_t next = name.size();
    if (open != std::string_view::npos) {
      const std::size_t close = name.find(']', open);
      if (close == std::string_view::npos) {
        refuse(list, "a bracket is not closed");
      }
      ranges = expand_ranges(name.substr(open + 1, close - open - 1), list);
      next = close + 1;
    }
    if (hosts.size() * ranges.size() > kMostHosts) {
      refuse(list, "more than " + std::to_string(kMostHosts) + " hosts");
    }
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& range : ranges) {
        longer.push_back(host);
        longer.back().append(text).append(range);
      }
    }
    hosts = std::move(longer);
    name.remove_prefix(next);
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view list) {
  std::vector<std::string> hosts;
  for (const std::string_view name : split(list)) {
    if (name.empty()) {
      refuse(list, "a host without a name");
    }
    for (std::string& host : expand_name(name, list)) {
      hosts.push_back(std::move(host));
    }
    if (hosts.size() > kMostHosts) {
      refuse(list, "more than " + std::to_string(kMostHosts) + " hosts");
    }
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  for (std::string_view part : split(text)) {
    const std::size_t times = part.find("(x");
    const auto count = number(part.substr(0, times));
    std::optional<unsigned long> nodes = 1;
    if (times != std::string_view::npos) {
      nodes = part.back() == ')' ? number(part.substr(times + 2, part.size() - times - 3))
                                 : std::nullopt;
    }
    if (!count || !nodes || *count > kMostHosts || *nodes > kMostHosts - tasks.size()) {
      refuse(text, "\"" + std::string(part) + "\" is not a count of tasks such as 2 or 2(x3)");
    }
    tasks.insert(tasks.end(), *nodes, static_cast<int>(*count));
  }
  return tasks;
}

}  // namespace sherd::launch
