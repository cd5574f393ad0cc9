#include "worker/testing/fault_points.h"

#include "common/log.h"

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <poll.h>
#include <unistd.h>

namespace rubato::worker {

namespace {
constexpr std::int64_t kSlowMsMax = 60'000;

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool names(const FaultPlan& plan, std::string_view phase, std::uint64_t step) {
  return plan.phase == phase && plan.step.value_or(step) == step;
}
}  // namespace

Result<FaultPlan> parse_fault_plan(std::string_view text) {
  FaultPlan plan;
  const auto take = [&text] {
    const std::size_t colon = text.find(':');
    const std::string_view word = text.substr(0, colon);
    text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
    return word;
  };
  plan.phase = take();
  if (plan.phase.empty()) return Error(Code::kInvalid, "fault plan names no phase");
  if (const std::string_view step = take(); !step.empty() && step != "*") {
    plan.step = number_of(step);
    if (!plan.step) {
      return Error(Code::kInvalid, "fault plan: step \"" + std::string(step) + "\"");
    }
  }
  std::string action(take());
  if (action.starts_with("slow-")) {
    const auto ms = number_of(std::string_view(action).substr(5));
    if (!ms || *ms > kSlowMsMax) return Error(Code::kInvalid, "fault plan: \"" + action + "\"");
    plan.slow = std::chrono::milliseconds(*ms);
    return plan;
  }
  plan.group = action.ends_with("-group");
  if (plan.group) action.resize(action.size() - std::string_view("-group").size());
  if (action.empty() || action == "kill") plan.signal = SIGKILL;
  if (action == "stop") plan.signal = SIGSTOP;
  if (plan.signal == 0) return Error(Code::kInvalid, "fault plan: action \"" + action + "\"");
  return plan;
}

FaultPoints FaultPoints::from_environment() {
  const char* files = std::getenv("RUBATO_FAULT_FILE");
  std::optional<FaultPlan> plan;
  if (const char* text = std::getenv("RUBATO_FAULT_PHASE"); text != nullptr && *text != '\0') {
    auto parsed = parse_fault_plan(text);
    if (parsed.ok()) {
      plan = std::move(parsed).value();
    } else {
      LOG_WARNING("faults", "{}", parsed.error().what());
    }
  }
  return {std::move(plan), files == nullptr ? "" : files};
}

FaultPoints::FaultPoints(std::optional<FaultPlan> plan, const std::string& files)
    : plan_(std::move(plan)) {
  std::istringstream names_of_files(files);
  for (std::string name; std::getline(names_of_files, name, ':');) {
    if (!name.empty()) files_.push_back(name);
  }
}

std::vector<FaultPoints::FilePlan> FaultPoints::file_plans() const {
  std::vector<FilePlan> plans;
  for (const std::string& file : files_) {
    if (::access(file.c_str(), R_OK) != 0) continue;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (auto parsed = parse_fault_plan(line); parsed.ok()) {
        plans.push_back({std::move(parsed).value(), file});
      }
    }
  }
  return plans;
}

void FaultPoints::reach(std::string_view phase, std::uint64_t step) {
  std::optional<FaultPlan> due;
  Duration slow{0};
  {
    const std::lock_guard lock(*mutex_);
    if (!plan_ && files_.empty()) return;
    std::vector<FilePlan> plans = file_plans();
    if (plan_) plans.push_back({*plan_, ""});
    for (const FilePlan& each : plans) {
      if (!names(each.plan, phase, step)) continue;
      slow += each.plan.slow;
      if (each.plan.signal == 0 || due) continue;
      due = each.plan;
      if (each.file.empty()) {
        plan_.reset();
      } else {
        ::unlink(each.file.c_str());
      }
    }
  }
  if (slow > Duration{0}) ::poll(nullptr, 0, static_cast<int>(slow / 1ms));
  if (!due) return;
  std::printf("fault-point phase=%s step=%llu action=%s%s\n", due->phase.c_str(),
              static_cast<unsigned long long>(step), due->signal == SIGKILL ? "kill" : "stop",
              due->group ? "-group" : "");
  std::fflush(stdout);
  const pid_t group_of_agent = ::getpgid(::getppid());
  if (due->group && group_of_agent > 1) ::kill(-group_of_agent, due->signal);
  ::kill(due->group ? 0 : ::getpid(), due->signal);
}

}  // namespace rubato::worker
