#include "worker/script/launch.h"

#include "common/json.h"
#include "common/net/channel.h"
#include "common/words.h"
#include "worker/script/launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace rubato::worker {
namespace {

constexpr std::uint32_t kPortMost = UINT16_MAX;
// Of torchrun: another interpreter for the script than its own.
constexpr const char* kPythonVariable = "PYTHON_EXEC";

// Of torchrun, without its dashes and with dashes inside.
constexpr std::array<std::string_view, 28> kWithValue = {"nnodes",
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
                                                         "shutdown-timeout",
                                                         "log-line-prefix-template",
                                                         "duplicate-stdout-filters",
                                                         "duplicate-stderr-filters",
                                                         "r",
                                                         "t"};
constexpr std::string_view kLocalRank = "${local_rank}";

template <class List>
bool has(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

// `words` from `at` on are options of torchrun and what it starts. `is_launch`: of its predecessor,
// whose scripts get their local rank as an argument.
Result<RankProgram> started_by_torchrun(const std::string& python,
                                        const std::vector<std::string>& words, std::size_t at,
                                        bool is_launch) {
  bool gives_rank = is_launch;
  bool is_module = false;
  bool no_python = false;
  RankProgram found{.is_of_torchrun = true};
  for (; at < words.size() && words[at].starts_with("-"); ++at) {
    if (words[at] == "--") {
      ++at;
      break;
    }
    const std::string& word = words[at];
    const std::size_t equals = word.find('=');
    const bool has_value = equals != std::string::npos;
    std::string name = word.substr(0, equals);
    name.erase(0, name.find_first_not_of('-'));
    std::ranges::replace(name, '_', '-');
    if (name == "m" || name == "module") {
      is_module = true;
    } else if (name == "no-python") {
      no_python = true;
    } else if (is_launch && name == "use-env") {
      gives_rank = false;
    } else if (has(kWithValue, name)) {
      if (!has_value) ++at;
      if (name != "role")
        found.left_out.push_back(word.substr(0, equals));
      else if (has_value || at < words.size())
        found.role = has_value ? word.substr(equals + 1) : words[at];
    } else if (name == "standalone" || word.starts_with("-r") || word.starts_with("-t")) {
      found.left_out.push_back(word);  // -r3: with its value
    } else {
      return Error(Code::kInvalid,
                   "the command's option " + word +
                       " of torchrun is not known here; leave it out, or start the script by "
                       "`python` itself: ranks, rendezvous and restarts come from the job");
    }
  }
  if (at >= words.size())
    return Error(Code::kInvalid, "the command starts torchrun, and torchrun nothing");
  std::vector<std::string>& program = found.words;
  const char* const other = std::getenv(kPythonVariable);
  if (!no_python) program = {other == nullptr || *other == '\0' ? python : other, "-u"};
  if (is_module) program.emplace_back("-m");
  program.push_back(words[at]);
  if (gives_rank) program.push_back("--local-rank=" + std::string(kLocalRank));
  program.insert(program.end(), words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
  return found;
}

// A string of JSON from behind its first quote, which may be cut short; enough for `most` bytes.
std::string text_of_json(std::string_view text, std::size_t most) {
  const auto unit = [&](std::size_t at) {  // of UTF-16, where one is written; else 0
    unsigned number = 0;
    if (at + 6 <= text.size() && text.substr(at).starts_with("\\u"))
      std::from_chars(text.data() + at + 2, text.data() + at + 6, number, 16);
    return number;
  };
  const auto is_high = [&](std::size_t at) { return unit(at) >= 0xd800 && unit(at) < 0xdc00; };
  const auto is_low = [&](std::size_t at) { return unit(at) >= 0xdc00 && unit(at) < 0xe000; };
  std::string found;
  for (std::size_t at = 0; at < text.size() && text[at] != '"' && found.size() < 6 * most;) {
    const bool is_pair = is_high(at) && is_low(at + 6);
    const bool is_half = !is_pair && (is_high(at) || is_low(at));
    std::size_t length = text[at] == '\\' ? 2 : 1;
    if (text.substr(at).starts_with("\\u")) length = is_pair ? 12 : 6;
    if (at + length > text.size()) break;
    found += is_half ? "?" : text.substr(at, length);
    at += length;
  }
  const auto parsed = json::parse("\"" + readable(found) + "\"");
  return parsed.ok() ? parsed->string_or("") : "";
}

}  // namespace

Result<RankProgram> program_of(const std::vector<std::string>& command) {
  if (command.empty() || command.front().empty())
    return Error(Code::kInvalid, "the container \"worker\" has no command; say what it is to run");
  if (last_part(command.front()) == kTorchrun) {
    TRY(const std::string python, interpreter_of(command.front()));
    return started_by_torchrun(python, command, 1, false);
  }
  if (is_python(command.front())) {
    const PythonStart start = started_by_python(command);
    const bool is_launch = start.is_module && start.name == kLaunchModule;
    const bool is_torchrun =
        start.is_module ? start.name == kTorchrunModule : last_part(start.name) == kTorchrun;
    if (is_launch || is_torchrun)
      return started_by_torchrun(command.front(), command, start.at, is_launch);
  }
  if (const std::string launcher = launcher_in(command); !launcher.empty())
    return Error(Code::kInvalid,
                 "the command starts " + launcher +
                     ", which would begin ranks of its own: each pod would train alone; put "
                     "`python` in its place, or make torchrun the command's first word: ranks, "
                     "rendezvous and restarts come from the job");
  return RankProgram{.words = command};
}

std::vector<std::string> words_of(const RankProgram& program, std::uint32_t local_rank) {
  std::vector<std::string> words = program.words;
  if (!program.is_of_torchrun) return words;
  const std::string number = std::to_string(local_rank);
  for (std::string& word : words)
    for (std::size_t at = 0; (at = word.find(kLocalRank, at)) != std::string::npos;)
      word.replace(at, kLocalRank.size(), number);
  return words;
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
  const wire::Address& address = form.members(0).address();
  const net::Endpoint first{address.host(),
                            static_cast<std::uint16_t>(std::min(address.port(), kPortMost))};
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
      {"ROLE_NAME", facts.role},
      {"MASTER_ADDR", first.host},
      {"MASTER_PORT", std::to_string(first.port)},
      // Rank 0 serves the store: it is fresh in each generation, and so is its port.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(facts.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(facts.restarts_most)},
      {"TORCHELASTIC_RUN_ID", facts.job_uid},
      {"TORCHELASTIC_ERROR_FILE", facts.error_file},
      {"RUBATO_PROGRESS_FILE", facts.progress_file},
      {"JAX_COORDINATOR_ADDRESS", net::to_string(first)},
      {"JAX_NUM_PROCESSES", world},
      {"JAX_PROCESS_ID", rank}};
  if (facts.sets_nccl_errors) variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  if (place.local_world > 1 && facts.sets_threads) variables["OMP_NUM_THREADS"] = "1";
  return variables;
}

std::string message_of_error_file(std::string_view text, std::size_t most) {
  constexpr std::string_view kKey = "\"message\"";
  for (std::size_t at = text.find(kKey); at != std::string_view::npos; at = text.find(kKey, at)) {
    at = text.find_first_not_of(" \t\r\n:", at + kKey.size());
    if (at != std::string_view::npos && text[at] == '"')
      return clipped(readable(text_of_json(text.substr(at + 1), most)), most);
  }
  return "";
}

}  // namespace rubato::worker
