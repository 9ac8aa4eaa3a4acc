#include "files/control_group.h"

#include <fstream>
#include <system_error>

namespace sherd::files {

namespace {

namespace fs = std::filesystem;

// Each line of /proc/self/cgroup (cgroups(7)): "5:cpu,cpuacct:/path", of version 2 "0::/path".
struct Membership {
  std::string controllers;
  std::string path;
};

std::vector<Membership> memberships_in(const fs::path& own) {
  std::vector<Membership> found;
  std::ifstream file(own);
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first != std::string::npos && second != std::string::npos) {
      found.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
    }
  }
  return found;
}

bool holds(const std::string& controllers, const std::string& controller) {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

}  // namespace

std::vector<fs::path> control_groups(const std::string& controller,
                                     const ControlGroupPlaces& places) {
  fs::path tree = places.root;
  fs::path path = "/";
  for (const Membership& one : memberships_in(places.own)) {
    if (holds(one.controllers, controller)) {
      tree = places.root / controller;
      path = one.path;
      break;
    }
    if (one.controllers.empty()) {
      path = one.path;
    }
  }
  std::vector<fs::path> groups;
  std::error_code ignored;
  for (fs::path group = path.lexically_normal().relative_path(); !group.empty();
       group = group.parent_path()) {
    // A container may see its group as the root, and the host's path to it.
    if (fs::is_directory(tree / group, ignored)) {
      groups.push_back(tree / group);
    }
  }
  groups.push_back(tree);
  return groups;
}

}  // namespace sherd::files
