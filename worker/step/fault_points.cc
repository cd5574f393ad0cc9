#include "worker/step/fault_points.h"

#include "common/log.h"

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

namespace rubato::worker {

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
    std::uint64_t number = 0;
    const auto [end, failed] = std::from_chars(step.data(), step.data() + step.size(), number);
    if (failed != std::errc() || end != step.data() + step.size()) {
      return Error(Code::kInvalid, "fault plan: step \"" + std::string(step) + "\"");
    }
    plan.step = number;
  }
  std::string action(take());
  plan.group = action.ends_with("-group");
  if (plan.group) action.resize(action.size() - std::string_view("-group").size());
  if (action.empty() || action == "kill") plan.signal = SIGKILL;
  if (action == "stop") plan.signal = SIGSTOP;
  if (plan.signal == 0) return Error(Code::kInvalid, "fault plan: action \"" + action + "\"");
  return plan;
}

FaultPoints FaultPoints::from_environment() {
  const char* file = std::getenv("RUBATO_FAULT_FILE");
  std::optional<FaultPlan> plan;
  if (const char* text = std::getenv("RUBATO_FAULT_PHASE"); text != nullptr && *text != '\0') {
    auto parsed = parse_fault_plan(text);
    if (parsed.ok()) {
      plan = std::move(parsed).value();
    } else {
      LOG_WARNING("faults", "{}", parsed.error().what());
    }
  }
  return {std::move(plan), file == nullptr ? "" : file};
}

void FaultPoints::reach(std::string_view phase, std::uint64_t step) {
  if (!file_.empty() && ::access(file_.c_str(), R_OK) == 0) {
    std::string text;
    std::getline(std::ifstream(file_), text);
    if (auto parsed = parse_fault_plan(text); parsed.ok()) plan_ = std::move(parsed).value();
  }
  if (!plan_ || plan_->phase != phase || plan_->step.value_or(step) != step) return;
  const FaultPlan plan = *plan_;
  plan_.reset();
  if (!file_.empty()) ::unlink(file_.c_str());
  std::printf("fault-point phase=%s step=%llu action=%s%s\n", plan.phase.c_str(),
              static_cast<unsigned long long>(step), plan.signal == SIGKILL ? "kill" : "stop",
              plan.group ? "-group" : "");
  std::fflush(stdout);
  ::kill(plan.group ? 0 : ::getpid(), plan.signal);
}

}  // namespace rubato::worker
