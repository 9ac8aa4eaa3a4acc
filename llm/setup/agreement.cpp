#include "llm/setup/agreement.h"

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <span>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ops/cpu/isa_agreement.h"

namespace llm::setup {

namespace {

using nlohmann::json;
using sherd::Error;
using sherd::ExitCode;

constexpr std::size_t kRanksNamed = 8;

// Accepts any bytes: paths and messages need not be UTF-8.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string fault_text(ExitCode code, const std::string& message) {
  return text_of({{"code", static_cast<int>(code)}, {"message", message}});
}

// Empty, or what `work` threw; the exception itself goes to `thrown`.
std::string fault_of(const std::function<void()>& work, std::exception_ptr& thrown) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    thrown = std::current_exception();
    return fault_text(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    thrown = std::current_exception();
    return fault_text(ExitCode::OutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    return fault_text(says_out_of_memory(error) ? ExitCode::OutOfMemory : ExitCode::Internal,
                      error.what());
  } catch (...) {  // a caller's own kind
    thrown = std::current_exception();
    return fault_text(ExitCode::Internal, "an exception that is not a std::exception");
  }
}

json settings_json(const Settings& settings) {
  json object = json::object();
  for (const auto& [name, value] : settings) {
    object[name] = value;
  }
  return object;
}

// One line for each value of `name` that is not rank 0's.
std::string differences_in(const std::string& name, const std::vector<json>& ranks) {
  const auto value_of = [&](std::size_t rank) {
    return ranks[rank].contains(name) ? ranks[rank][name].get<std::string>() : "not there";
  };
  const std::string first = value_of(0);
  std::map<std::string, std::vector<int>> others;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (const std::string value = value_of(rank); value != first) {
      others[value].push_back(static_cast<int>(rank));
    }
  }
  std::string lines;
  for (const auto& [value, who] : others) {
    lines += fmt::format("\n  {} is {} on rank 0 and {} on {}", name, first, value, names_of(who));
  }
  return lines;
}

}  // namespace

bool says_out_of_memory(const std::exception& error) {
  const auto* const of_c10 = dynamic_cast<const c10::Error*>(&error);
  if (of_c10 == nullptr) {
    // What is not implemented fails earlier, without a "primitive descriptor"; what is left is to
    // write its machine code into new memory.
    return std::string(error.what()) == "could not create a primitive";
  }
  const std::string text = of_c10->what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(of_c10) != nullptr ||
         text.find("not enough memory") != std::string::npos ||
         text.find("can't allocate memory") != std::string::npos;
}

void KeptFailure::keep(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (!failure_) {
      failure_ = std::current_exception();
    }
  }
}

void KeptFailure::share(sherd::World& world) {
  on_rank_0(world, [] {});
}

void KeptFailure::on_rank_0(sherd::World& world, const std::function<void()>& work) {
  on_all_ranks(world, [&] {
    if (failure_) {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    if (world.rank() == 0) {
      work();
    }
  });
}

std::string names_of(const std::vector<int>& ranks) {
  const std::span<const int> named(ranks.data(), std::min(ranks.size(), kRanksNamed));
  return fmt::format(
      "{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(named, ", "),
      ranks.size() > named.size() ? fmt::format(" and {} more", ranks.size() - named.size()) : "");
}

void on_all_ranks(sherd::World& world, const std::function<void()>& work) {
  std::exception_ptr thrown;
  const std::vector<std::string> faults = world.all_gather(fault_of(work, thrown));
  const auto first = std::find_if(faults.begin(), faults.end(),
                                  [](const std::string& fault) { return !fault.empty(); });
  if (first == faults.end()) {
    return;
  }
  if (first - faults.begin() == world.rank()) {
    std::rethrow_exception(thrown);
  }
  const json fault = json::parse(*first);
  throw ReportedElsewhere(static_cast<ExitCode>(fault["code"].get<int>()),
                          fault["message"].get<std::string>());
}

void on_rank_0(sherd::World& world, const std::function<void()>& work) {
  on_all_ranks(world, [&] {
    if (world.rank() == 0) {
      work();
    }
  });
}

std::string from_rank_0(sherd::World& world, const std::function<std::string()>& work) {
  std::string result;
  on_all_ranks(world, [&] { result = world.rank() == 0 ? work() : ""; });
  return world.all_gather(result).front();
}

void require_agreement(sherd::World& world, const Settings& mine) {
  std::vector<json> ranks;
  for (const std::string& text : world.all_gather(text_of(settings_json(mine)))) {
    ranks.push_back(json::parse(text));
  }
  json names = json::object();
  for (const json& settings : ranks) {
    names.update(settings);
  }
  std::string differences;
  for (const auto& [name, value] : names.items()) {
    differences += differences_in(name, ranks);
  }
  if (differences.empty()) {
    return;
  }
  const std::string message = "the ranks were started differently:" + differences +
                              "\nStart all of them with the same configuration, data and model.";
  if (world.rank() == 0) {
    throw Error(ExitCode::RanksDisagree, message);
  }
  throw ReportedElsewhere(ExitCode::RanksDisagree, message);
}

Settings with_version(Settings settings, sherd::Version version) {
  settings.emplace_back("the version of sherd",
                        fmt::format("{}.{}.{}", version.major, version.minor, version.patch));
  return settings;
}

std::string agree_on_start(sherd::World& world, const Settings& mine) {
  require_agreement(world, with_version(mine));
  return sherd::ops::cpu::agree_on_isa(world);
}

}  // namespace llm::setup
