#include "worker/script/launcher.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr std::array<std::string_view, 4> kLaunchers = {kTorchrun, "horovodrun", "mpirun",
                                                        "mpiexec"};
constexpr std::array<std::string_view, 5> kLauncherModules = {
    kTorchrunModule, kLaunchModule, "accelerate.commands.launch", "deepspeed.launcher.runner",
    "composer.cli.launcher"};
// Names of packages and folders as well: they are launchers where a script follows.
constexpr std::array<std::string_view, 2> kPackageLaunchers = {"deepspeed", "composer"};

constexpr std::string_view kBlanks = " \t\n";
constexpr std::string_view kCommandEnds = "\n;&|()";
constexpr std::string_view kWordEnds = " \t\n;&|()\"'`";

template <class List>
bool is_one_of(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

// Whether a script comes, for a launcher and not for an interpreter.
bool has_script(std::span<const std::string> words) {
  for (const std::string& word : words) {
    if (is_python(word)) return false;
    if (word.ends_with(".py") || word == "-m" || word == "--module") return true;
  }
  return false;
}

// The launcher that the first word is; "": none.
std::string launcher_at(std::span<const std::string> words) {
  std::string_view word = words.front();
  const std::string_view name = last_part(word);
  if (word.find('=') != std::string_view::npos) return "";  // a variable, or an option's value
  if (is_one_of(kLaunchers, name)) return std::string(name);
  if (name == "accelerate" && words.size() > 1 && words[1] == "launch") return "accelerate launch";
  if (is_one_of(kPackageLaunchers, name) && has_script(words.subspan(1))) return std::string(name);
  if (word.starts_with("-m")) word.remove_prefix(2);
  return is_one_of(kLauncherModules, word) ? std::string(word) : "";
}

// In what a shell is to run.
std::string launcher_in_text(std::string text) {
  for (std::size_t at = 0; (at = text.find("\\\n", at)) != std::string::npos;)
    text.replace(at, 2, " ");
  std::vector<std::string> words(1);  // of one command
  for (const char c : text + "\n") {
    if (kWordEnds.find(c) == std::string_view::npos) {
      words.back() += c;
      continue;
    }
    if (!words.back().empty()) words.emplace_back();
    if (kCommandEnds.find(c) == std::string_view::npos) continue;
    words.pop_back();
    if (std::string found = launcher_in(words); !found.empty()) return found;
    words.assign(1, "");
  }
  return "";
}

// The file that is run by this name.
std::filesystem::path file_of(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* const all = std::getenv("PATH");
  std::istringstream folders(all == nullptr ? "" : all);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::filesystem::path file = std::filesystem::path(folder) / program;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return program;
}

// That of a script's #! line, such as `#!/venv/bin/python3` or `#!/usr/bin/env python3`; where its
// path is long, the line is `#!/bin/sh`, and the next one has the path in quotes. "": none.
std::string interpreter_in(const std::filesystem::path& file) {
  std::string text(4096, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  if (!text.starts_with("#!")) return "";
  std::istringstream lines(text.substr(2));
  for (const char* between : {" \t", "\"'"}) {
    std::string line;
    std::getline(lines, line);
    for (std::size_t at = 0; (at = line.find_first_not_of(between, at)) != std::string::npos;) {
      const std::size_t end = std::min(line.find_first_of(between, at), line.size());
      const std::string word = line.substr(at, end - at);
      if (is_python(word)) return word;
      at = end;
    }
  }
  return "";
}

}  // namespace

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1);
}

bool is_python(std::string_view word) { return last_part(word).starts_with("python"); }

PythonStart started_by_python(std::span<const std::string> command) {
  for (std::size_t at = 1; at < command.size(); ++at) {
    const std::string& word = command[at];
    if (!word.starts_with("-")) return {.name = word, .at = at + 1};
    if (word == "--check-hash-based-pycs") ++at;
    if (word.starts_with("--")) continue;
    const std::size_t letter = word.find_first_of("cmWX");  // those with a value
    if (letter == std::string::npos) continue;
    const bool is_value_apart = letter + 1 == word.size();
    if (word[letter] == 'c') return {};
    if (word[letter] == 'm' && !is_value_apart)
      return {.is_module = true, .name = word.substr(letter + 1), .at = at + 1};
    if (is_value_apart) ++at;
    if (word[letter] == 'm' && at < command.size())
      return {.is_module = true, .name = command[at], .at = at + 1};
  }
  return {};
}

std::string launcher_in(std::span<const std::string> words) {
  bool has_text = false;  // one of the words may be a shell's, as of `sh -c` and `env -S`
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (has_text && word.find_first_of(kBlanks) != std::string::npos) {
      if (std::string found = launcher_in_text(word); !found.empty()) return found;
      continue;
    }
    if (is_python(word)) {
      const PythonStart start = started_by_python(words.subspan(at));
      if (start.name.empty()) return "";
      if (start.is_module) return is_one_of(kLauncherModules, start.name) ? start.name : "";
      return launcher_at(words.subspan(at + start.at - 1));
    }
    if (word.ends_with(".py")) return "";
    const bool is_option = word.starts_with("-") && !word.starts_with("--");
    has_text = has_text || (is_option && word.find_first_of("cS") != std::string::npos);
    if (std::string found = launcher_at(words.subspan(at)); !found.empty()) return found;
    const bool is_module = word == "-m" && at + 1 < words.size() && !words[at + 1].empty() &&
                           std::isalpha(static_cast<unsigned char>(words[at + 1].front())) != 0;
    if (is_module && !is_one_of(kLauncherModules, words[at + 1])) return "";
  }
  return "";
}

Result<std::string> interpreter_of(const std::string& torchrun) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path file = file_of(torchrun);
  const bool is_there = fs::exists(file, failed);
  const std::string named = interpreter_in(file);
  const bool is_path = named.find('/') != std::string::npos;
  if (!named.empty() && (!is_path || fs::exists(named, failed))) return named;
  if (!is_there && torchrun.find('/') == std::string::npos) return std::string("python3");
  const fs::path resolved = is_there ? fs::canonical(file, failed) : file;
  const fs::path beside = resolved.parent_path() / "python3";
  if (!is_there || fs::exists(beside, failed)) return beside.string();
  return Error(Code::kInvalid,
               "the interpreter of " + file.string() +
                   " is not known: its #! line names none, and " + beside.string() +
                   " is not there; name the interpreter: python -m torch.distributed.run");
}

}  // namespace rubato::worker
