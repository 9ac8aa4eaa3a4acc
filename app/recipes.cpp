// sherd recipes ls | cp NAME [TO]

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/rank.h"
#include "app/verbs.h"
#include "files/input.h"
#include "files/output.h"
#include "llm/config/nearest_name.h"
#include "llm/track/shell_word.h"
#include "sherd/error.h"

namespace app {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

// Next to the program, both in a build and installed: bin/sherd and share/sherd/recipes.
fs::path shipped_folder() {
  const fs::path folder =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/sherd/recipes";
  std::error_code error;
  fs::path real = fs::canonical(folder, error);
  if (error) {
    throw Error(ExitCode::InputMissing,
                folder.string() + ": no recipes: " + error.message() +
                    ". `cmake --install` puts them there; they belong beside the program");
  }
  return real;
}

std::string text_of(const fs::path& file) {
  return sherd::files::read_file(file.string(), sherd::files::kMaxConfigBytes);
}

// "workshop/small-bloom" -> its file.
std::map<std::string, fs::path> recipes_in(const fs::path& folder) {
  std::map<std::string, fs::path> recipes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".toml") {
      recipes[fs::relative(entry.path(), folder).replace_extension().string()] = entry.path();
    }
  }
  return recipes;
}

// The first phrase of the comment at its head.
std::string summary_of(const std::string& recipe) {
  std::string head;
  for (std::size_t begin = 0; begin < recipe.size() && recipe[begin] == '#';) {
    const std::size_t end = std::min(recipe.find('\n', begin), recipe.size());
    const std::size_t text = std::min(begin + 2, end);  // a line may be "#" alone
    head += (head.empty() || text == end ? "" : " ") + recipe.substr(text, end - text);
    begin = end + 1;
  }
  return head.substr(0, std::min(head.find(": "), head.find(". ")));
}

int list() {
  const auto recipes = recipes_in(shipped_folder());
  std::size_t width = 0;
  for (const auto& [name, file] : recipes) {
    width = std::max(width, name.size());
  }
  for (const auto& [name, file] : recipes) {
    print_result(fmt::format("{:{}}  {}", name, width, summary_of(text_of(file))));
  }
  return 0;
}

std::string with_replaced(std::string text, const std::string& old, const std::string& by) {
  for (std::size_t at = text.find(old); at != std::string::npos;
       at = text.find(old, at + by.size())) {
    text.replace(at, old.size(), by);
  }
  return text;
}

// The recipe with the full paths of files that ship with it, so that it runs from any folder; the
// commands in its comments name the copy.
std::string copy_of(const std::string& recipe, const std::string& name, const fs::path& shipped,
                    const std::string& to) {
  const std::string paths = with_replaced(recipe, "\"recipes/", "\"" + shipped.string() + "/");
  return with_replaced(paths, " recipes/" + name + ".toml", " " + llm::track::shell_word(to));
}

int copy(const std::string& name, std::string to) {
  const fs::path shipped = shipped_folder();
  const auto recipes = recipes_in(shipped);
  const auto found = recipes.find(name);
  if (found == recipes.end()) {
    std::vector<std::string> names;
    for (const auto& [known, file] : recipes) {
      names.push_back(known);
    }
    const std::string near = llm::config::nearest_name(name, names);
    throw Error(ExitCode::Usage, fmt::format("there is no recipe '{}'{}. `sherd recipes ls` lists "
                                             "them",
                                             name, near.empty() ? "" : "; is it " + near + "?"));
  }
  const std::string file_name = found->second.filename().string();
  to = to.empty() ? file_name : fs::is_directory(to) ? (fs::path(to) / file_name).string() : to;
  if (fs::exists(fs::symlink_status(to))) {
    throw Error(ExitCode::CannotWrite,
                to + ": already exists and is kept. Give another name: sherd recipes cp " + name +
                    " my.toml");
  }
  sherd::files::write_file(to, copy_of(text_of(found->second), name, shipped, to));
  say(to);
  return 0;
}

}  // namespace

void add_recipes(CLI::App& program, Verb& chosen) {
  struct Copied {
    std::string name;
    std::string to;
  };
  CLI::App* verb = program.add_subcommand(
      "recipes", "List the recipes that ship with sherd, or copy one to start from");
  verb->require_subcommand(1);
  CLI::App* ls = verb->add_subcommand("ls", "list names, with one line about each")->alias("list");
  ls->callback([&chosen] { chosen = list; });
  CLI::App* cp = verb->add_subcommand("cp", "copy a recipe to edit");
  auto copied = std::make_shared<Copied>();
  cp->add_option("name", copied->name, "name of a recipe, as `sherd recipes ls` prints it")
      ->required();
  cp->add_option("to", copied->to, "file or folder (default: here, under its own name)");
  cp->callback([copied, &chosen] { chosen = [copied] { return copy(copied->name, copied->to); }; });
  verb->footer("Example: sherd recipes cp small-bloom-squad-32 my.toml && sherd train my.toml");
}

}  // namespace app
