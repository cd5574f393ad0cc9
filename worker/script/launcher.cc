#include "worker/script/launcher.h"

#include "worker/script/shell_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
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

// A program that starts another one: the words in front of its command. Each list is of words
// between blanks. An option that is in none, or a verb that is another: what it starts is not
// known.
struct Wrapper {
  std::string_view name;
  std::string_view verb = "";    // its first word, as of `uv run`
  std::string_view flags = "";   // options without a value
  std::string_view values = "";  // options with one: `-n X`, `-nX` or `--name=X`
  int arguments = 0;             // words behind the options
};
constexpr Wrapper kWrappers[] = {
    {.name = "exec", .flags = "-c -l", .values = "-a"},
    {.name = "command", .flags = "-p"},
    {.name = "time",
     .flags = "-p -v -a -q --verbose --append",
     .values = "-o -f --output --format"},
    {.name = "nohup"},
    {.name = "setsid", .flags = "-c -f -w --ctty --fork --wait"},
    {.name = "env",
     .flags = "- -i -v --ignore-environment --debug",
     .values = "-u -C --unset --chdir"},
    {.name = "nice", .values = "-n --adjustment"},
    {.name = "ionice", .flags = "-t --ignore", .values = "-c -n --class --classdata"},
    {.name = "timeout",
     .flags = "-v --verbose --foreground --preserve-status",
     .values = "-k -s --kill-after --signal",
     .arguments = 1},
    {.name = "stdbuf", .values = "-i -o -e --input --output --error"},
    {.name = "taskset", .flags = "-a -c --all-tasks --cpu-list", .arguments = 1},
    {.name = "numactl",
     .flags = "-a -l --all --localalloc",
     .values = "-m -i -N -C -p --membind --interleave --cpunodebind --physcpubind --preferred"},
    {.name = "tini", .flags = "-g -s -v -vv -vvv -w", .values = "-e -p"},
    {.name = "dumb-init", .flags = "-c -v --single-child --verbose", .values = "-r --rewrite"},
    {.name = "gosu", .arguments = 1},
    {.name = "su-exec", .arguments = 1},
    {.name = "sudo",
     .flags = "-E -H -n --preserve-env --set-home --non-interactive",
     .values = "-g -u --group --user"},
    {.name = "uv",
     .verb = "run",
     .flags = "-n -q -v --active --all-extras --all-groups --dev --exact --frozen --isolated "
              "--locked --no-cache --no-dev --no-project --no-sync --offline --quiet --verbose",
     .values = "-p -w --directory --env-file --extra --group --index --no-group --only-group "
               "--package --project --python --with --with-editable --with-requirements"},
    {.name = "poetry", .verb = "run"},
    {.name = "pipenv", .verb = "run"},
    {.name = "pdm", .verb = "run"},
    {.name = "pixi", .verb = "run", .flags = "--frozen --locked", .values = "-e --environment"},
    {.name = "conda",
     .verb = "run",
     .flags = "-v --live-stream --no-capture-output --verbose",
     .values = "-n -p --cwd --name --prefix"},
    {.name = "micromamba", .verb = "run", .values = "-n -p --cwd --name --prefix"},
    {.name = "nsys",
     .verb = "profile",
     .values = "-b -c -d -e -f -o -s -t -w -x -y --backtrace --capture-range --capture-range-end "
               "--cuda-memory-usage --delay --duration --env-var --force-overwrite "
               "--gpu-metrics-device --gpu-metrics-devices --kill --output --pytorch --sample "
               "--show-output --stats --stop-on-exit --trace"},
    {.name = "ncu",
     .flags = "-f --force-overwrite --nvtx",
     .values = "-c -k -o -s --export --kernel-name --launch-count --launch-skip --metrics "
               "--section --set --target-processes"},
};
constexpr std::array<std::string_view, 6> kShells = {"sh", "bash", "dash", "ash", "ksh", "zsh"};
constexpr std::array<std::string_view, 4> kQuestions = {"-h", "--help", "-V", "--version"};

using Words = std::span<const std::string>;

template <class List>
bool is_one_of(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

bool is_listed(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

bool is_assignment(std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == 0 || equals == std::string_view::npos) return false;
  return std::ranges::all_of(word.substr(0, equals),
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// Words of an option that stands first; 0: it is not known.
std::size_t option_length(const Wrapper& wrapper, std::string_view word) {
  const std::size_t equals = word.find('=');
  const bool is_long = word.starts_with("--");
  if (is_listed(wrapper.flags, word)) return 1;
  if (is_listed(wrapper.values, word)) return 2;
  const std::string_view name = word.substr(0, is_long ? equals : 2);
  const bool has_value = is_long ? equals != std::string_view::npos : word.size() > 2;
  return has_value && is_listed(wrapper.values, name) ? 1 : 0;
}

bool has_script(Words words) {
  return std::ranges::any_of(words, [](const std::string& word) {
    return word.ends_with(".py") || word == "-m" || word == "--module";
  });
}

// The launcher that the first word is; "": none, or it is only asked for its help or version.
std::string launcher_at(Words words) {
  if (words.size() < 2 || is_one_of(kQuestions, words[1])) return "";
  const std::string_view name = last_part(words.front());
  if (is_one_of(kLaunchers, name)) return std::string(name);
  if (name == "accelerate" && words[1] == "launch") return "accelerate launch";
  if (is_one_of(kPackageLaunchers, name) && has_script(words.subspan(1))) return std::string(name);
  return "";
}

std::string launcher_module(const std::string& name) {
  return is_one_of(kLauncherModules, name) ? name : "";
}

std::string launcher_of_python(Words words) {
  const PythonStart start = started_by_python(words);
  if (start.is_module) return launcher_module(start.name);
  return start.name.empty() ? "" : launcher_at(words.subspan(start.at - 1));
}

std::string launcher_in_text(const std::string& text) {
  for (const std::vector<std::string>& command : simple_commands(text))
    if (std::string found = launcher_in(command); !found.empty()) return found;
  return "";
}

// Of a shell: in the text of -c; what a file starts is not looked at.
std::string launcher_of_shell(Words words) {
  bool has_text = false;
  std::size_t at = 1;
  for (; at < words.size() && words[at].find_first_of("-+") == 0; ++at) {
    const std::string& word = words[at];
    if (word == "--rcfile" || word == "--init-file") ++at;
    if (word.starts_with("--")) continue;
    has_text = has_text || (word[0] == '-' && word.find('c') != std::string::npos);
    if (word.find_first_of("oO") != std::string::npos) ++at;
  }
  return has_text && at < words.size() ? launcher_in_text(words[at]) : "";
}

// `uv run -m X`, `env -S TEXT`: an option that is what is started.
std::optional<std::string> started_by_option(const Wrapper& wrapper, Words words) {
  const std::string& word = words.front();
  const bool has_next = words.size() > 1;
  if (wrapper.name == "uv" && (word == "-m" || word == "--module"))
    return has_next ? launcher_module(words[1]) : "";
  if (wrapper.name != "env") return std::nullopt;
  if (word == "-S" || word == "--split-string") return has_next ? launcher_in_text(words[1]) : "";
  for (const std::string_view name : {"-S", "--split-string="})
    if (word.starts_with(name)) return launcher_in_text(word.substr(name.size()));
  return std::nullopt;
}

// Leaves what is behind its own words in `words`, nothing where that is not known. A value: what is
// started is known without that.
std::optional<std::string> take_wrapper(const Wrapper& wrapper, Words& words) {
  const Words all = std::exchange(words, {});
  std::size_t at = 1;
  if (!wrapper.verb.empty() && (all.size() <= at || all[at++] != wrapper.verb)) return std::nullopt;
  while (at < all.size() && all[at].starts_with('-')) {
    if (all[at] == "--") {
      ++at;
      break;
    }
    if (auto found = started_by_option(wrapper, all.subspan(at))) return found;
    const std::size_t length = option_length(wrapper, all[at]);
    if (length == 0) return std::nullopt;
    at += length;
  }
  at += static_cast<std::size_t>(wrapper.arguments);
  if (at < all.size()) words = all.subspan(at);
  return std::nullopt;
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

bool is_python(std::string_view word) {
  std::string_view name = last_part(word);
  constexpr std::string_view kName = "python";
  if (!name.starts_with(kName)) return false;
  name.remove_prefix(kName.size());
  name.remove_prefix(std::min(name.find_first_not_of("0123456789."), name.size()));
  return name.find_first_not_of("dt") == std::string_view::npos;
}

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
  for (;;) {
    while (!words.empty() && is_assignment(words.front())) words = words.subspan(1);
    if (words.empty()) return "";
    const std::string_view name = last_part(words.front());
    if (is_python(name)) return launcher_of_python(words);
    if (is_one_of(kShells, name)) return launcher_of_shell(words);
    const auto* wrapper = std::ranges::find(kWrappers, name, &Wrapper::name);
    if (wrapper == std::end(kWrappers)) return launcher_at(words);
    if (auto found = take_wrapper(*wrapper, words)) return *found;
  }
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
