#include "worker/script/launch.h"

#include "common/json.h"
#include "common/words.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace rubato::worker {
namespace {

constexpr std::uint32_t kPortMost = 65535;

// Of torchrun, without its dashes and with dashes inside.
constexpr std::array<std::string_view, 24> kWithValue = {"nnodes",
                                                         "nproc-per-node",
                                                         "rdzv-backend",
                                                         "rdzv-endpoint",
                                                         "rdzv-id",
                                                         "rdzv-conf",
                                                         "max-restarts",
                                                         "monitor-interval",
                                                         "start-method",
                                                         "event-log-handler",
                                                         "role",
                                                         "log-dir",
                                                         "redirects",
                                                         "tee",
                                                         "local-ranks-filter",
                                                         "node-rank",
                                                         "master-addr",
                                                         "master-port",
                                                         "local-addr",
                                                         "logs-specs",
                                                         "numa-binding",
                                                         "signals-to-handle",
                                                         "r",
                                                         "t"};
constexpr std::array<std::string_view, 2> kAlone = {"standalone", "virtual-local-rank"};
constexpr std::array<std::string_view, 2> kLaunchers = {"torch.distributed.run",
                                                        "torch.distributed.launch"};
constexpr std::array<std::string_view, 6> kShells = {"sh", "bash", "dash", "ash", "ksh", "zsh"};
// They start the program that is among their arguments.
constexpr std::array<std::string_view, 13> kWrappers = {
    "env",  "uv",        "uvx",  "conda",   "micromamba", "poetry", "pipenv",
    "tini", "dumb-init", "nice", "numactl", "stdbuf",     "time"};

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1);
}

bool is_python(std::string_view word) { return last_part(word).starts_with("python"); }

template <class List>
bool has(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

bool is_torchrun(std::string_view word) {
  return last_part(word) == "torchrun" || has(kLaunchers, word);
}

// `words` from `at` on are options of torchrun and what it starts.
Result<std::vector<std::string>> started_by_torchrun(const std::string& python,
                                                     const std::vector<std::string>& words,
                                                     std::size_t at) {
  bool is_module = false;
  bool no_python = false;
  for (; at < words.size() && words[at].starts_with("-"); ++at) {
    if (words[at] == "--") {
      ++at;
      break;
    }
    std::string name = words[at];
    name.erase(0, name.find_first_not_of('-'));
    const std::size_t equals = name.find('=');
    const bool has_value = equals != std::string::npos;
    if (has_value) name.resize(equals);
    std::ranges::replace(name, '_', '-');
    if (name == "m" || name == "module") {
      is_module = true;
    } else if (name == "no-python") {
      no_python = true;
    } else if (has(kWithValue, name)) {
      if (!has_value) ++at;
    } else if (!has(kAlone, name)) {
      return Error(Code::kInvalid,
                   "the command's option " + words[at] +
                       " of torchrun is not known here; leave it out, or start the script by "
                       "`python` itself: ranks, rendezvous and restarts come from the job");
    }
  }
  if (at >= words.size())
    return Error(Code::kInvalid, "the command starts torchrun, and torchrun nothing");
  std::vector<std::string> program;
  if (!no_python) program = {python, "-u"};
  if (is_module) program.emplace_back("-m");
  program.insert(program.end(), words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  return program;
}

struct Module {
  std::string name;
  std::size_t arguments = 0;  // index of the first word behind it
};

// What -m names among the interpreter's options; nothing: a script, a text or no program follows.
std::optional<Module> module_of(const std::vector<std::string>& command) {
  for (std::size_t at = 1; at < command.size() && command[at].starts_with("-"); ++at) {
    const std::string& word = command[at];
    if (word == "--check-hash-based-pycs") ++at;
    if (word.starts_with("--")) continue;
    const std::size_t letter = word.find_first_of("cmWX");  // those with a value
    if (letter == std::string::npos) continue;
    const bool is_value_apart = letter + 1 == word.size();
    if (word[letter] == 'c') return std::nullopt;
    if (word[letter] == 'm' && !is_value_apart) return Module{word.substr(letter + 1), at + 1};
    if (is_value_apart) ++at;
    if (word[letter] == 'm' && at < command.size()) return Module{command[at], at + 1};
  }
  return std::nullopt;
}

// Whether a shell is to run a text (-c) in which torchrun is a word.
bool is_torchrun_in_shell(std::span<const std::string> command) {
  if (!has(kShells, last_part(command.front()))) return false;
  const auto is_text = [](const std::string& word) {
    return word.starts_with("-") && !word.starts_with("--") && word.ends_with("c");
  };
  const auto option = std::find_if(command.begin() + 1, command.end(), is_text);
  if (option == command.end() || option + 1 == command.end()) return false;
  constexpr const char* kBetween = " \t\n;&|()\"'`";
  const std::string& text = option[1];
  for (std::size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    if (is_torchrun(word)) return true;
    at = end;
  }
  return false;
}

// Whether a wrapper is to start torchrun. What follows a script of Python is the script's.
bool is_torchrun_in_wrapper(std::span<const std::string> command) {
  if (!has(kWrappers, last_part(command.front()))) return false;
  for (std::size_t at = 1; at < command.size() && !command[at].ends_with(".py"); ++at) {
    if (command[at].find('=') != std::string::npos) continue;  // a variable or an option's value
    if (is_torchrun(command[at]) || is_torchrun_in_shell(command.subspan(at))) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<std::string>> program_of(const std::vector<std::string>& command) {
  if (command.empty() || command.front().empty())
    return Error(Code::kInvalid, "the container \"worker\" has no command; say what it is to run");
  if (last_part(command.front()) == "torchrun") {
    // Its interpreter is the one beside it, as in a virtual environment.
    const std::string& path = command.front();
    const std::string python = path.find('/') == std::string::npos
                                   ? "python3"
                                   : path.substr(0, path.rfind('/') + 1) + "python3";
    return started_by_torchrun(python, command, 1);
  }
  if (is_python(command.front())) {
    const auto module = module_of(command);
    if (module && has(kLaunchers, module->name))
      return started_by_torchrun(command.front(), command, module->arguments);
  }
  if (is_torchrun_in_shell(command))
    return Error(
        Code::kInvalid,
        "the command starts torchrun inside a shell: each pod would train alone, as rank 0 "
        "of 1; make torchrun the command itself, or put `python` there: ranks, rendezvous "
        "and restarts come from the job");
  if (is_torchrun_in_wrapper(command))
    return Error(Code::kInvalid,
                 "the command starts torchrun behind " + command.front() +
                     ": each pod would train alone, as rank 0 of 1; put `python` there: ranks, "
                     "rendezvous and restarts come from the job");
  return command;
}

std::optional<PythonCommand> python_of(const std::vector<std::string>& program) {
  if (program.size() < 2 || !is_python(program.front())) return std::nullopt;
  PythonCommand found{.interpreter = {program.front()}};
  std::size_t at = 1;
  for (; at < program.size() && program[at].starts_with("-") && program[at] != "-m"; ++at) {
    constexpr std::array<std::string_view, 6> kFlags = {"-u", "-B", "-O", "-OO", "-s", "-E"};
    if (!has(kFlags, program[at])) return std::nullopt;
    found.interpreter.push_back(program[at]);
  }
  found.is_module = at < program.size() && program[at] == "-m";
  if (found.is_module) ++at;
  if (at >= program.size()) return std::nullopt;
  found.arguments.assign(program.begin() + static_cast<std::ptrdiff_t>(at), program.end());
  return found;
}

Result<RankPlace> place_of(const wire::Form& form, const wire::WorkerId& self) {
  RankPlace place;
  place.world = static_cast<std::uint32_t>(form.members_size());
  std::vector<std::string> pods;
  bool is_found = false;
  for (int i = 0; i < form.members_size(); ++i) {
    const wire::WorkerId& id = form.members(i).id();
    if (!has(pods, id.pod_uid())) pods.push_back(id.pod_uid());
    if (id.pod_uid() != self.pod_uid()) continue;
    if (id.slot() < self.slot()) ++place.local_rank;
    if (id.slot() != self.slot()) {
      ++place.local_world;
      continue;
    }
    is_found = id.incarnation() == self.incarnation();
    place.rank = static_cast<std::uint32_t>(i);
    place.group = static_cast<std::uint32_t>(pods.size() - 1);
  }
  if (!is_found) return Error(Code::kNotFound, "this worker is no member");
  place.groups = static_cast<std::uint32_t>(pods.size());
  return place;
}

std::map<std::string, std::string> environment_of(const RankPlace& place, const wire::Form& form,
                                                  const LaunchFacts& facts) {
  const wire::Address& first = form.members(0).address();
  const std::string port = std::to_string(std::min(first.port(), kPortMost));
  const std::string rank = std::to_string(place.rank);
  const std::string world = std::to_string(place.world);
  std::map<std::string, std::string> variables{
      {"RANK", rank},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world)},
      {"GROUP_RANK", std::to_string(place.group)},
      {"GROUP_WORLD_SIZE", std::to_string(place.groups)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", first.host()},
      {"MASTER_PORT", port},
      // Rank 0 serves the store: it is fresh in each generation, and so is its port.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(facts.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(facts.restarts_most)},
      {"TORCHELASTIC_RUN_ID", facts.job_uid},
      {"TORCHELASTIC_ERROR_FILE", facts.error_file},
      {"RUBATO_PROGRESS_FILE", facts.progress_file},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"JAX_COORDINATOR_ADDRESS", first.host() + ":" + port},
      {"JAX_NUM_PROCESSES", world},
      {"JAX_PROCESS_ID", rank}};
  if (place.local_world > 1 && facts.sets_threads) variables["OMP_NUM_THREADS"] = "1";
  return variables;
}

std::string message_of_error_file(const std::string& text, std::size_t most) {
  const auto parsed = json::parse(text);
  if (!parsed.ok()) return "";
  const json::Value& message = (*parsed)["message"];
  return clipped(
      message.is_object() ? message["message"].string_view_or("") : message.string_view_or(""),
      most);
}

}  // namespace rubato::worker
