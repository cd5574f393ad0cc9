#include "tools/rubatoctl/demo/job_watch.h"

#include "operator/api/resources.h"

#include <algorithm>

namespace rubato::ctl {

JobWatch::JobWatch(Session& session, const std::string& ns, const std::string& job)
    : session_(session), ns_(ns), job_(job), logs_(log_source(session), ns, job) {}

Status JobWatch::pump(MonoTime deadline) {
  Executor& executor = session_.executor();
  do {
    if (executor.now() >= next_look_) {
      TRY_OK(look());
      next_look_ = executor.now() + kStatusPoll;
    }
    const auto line = logs_.next(std::min<MonoTime>(deadline, next_look_));
    if (line.ok()) {
      take(*line);
    } else if (line.error().code() == Code::kCancelled) {
      TRY_OK(look());
      return ok();  // all is said
    } else if (line.error().code() != Code::kTimeout) {
      return line.error();
    }
  } while (executor.now() < deadline);
  return ok();
}

void JobWatch::take(const PodLine& line) {
  const auto loss = parse_loss_line(line.line);
  const auto news = story_.take(line.pod, line.line);
  if (!loss) {
    if (news && other) other(line.pod, line.line);
    return;
  }
  if (loss->replay || !line.time) return;
  const auto [seen, is_new] = steps_.emplace(loss->step, StepSeen{*loss, *line.time});
  if (!is_new) seen->second.time = std::min(seen->second.time, *line.time);
}

Status JobWatch::look() {
  const auto job = session_.client().get(api::kTrainingJob, {ns_, job_});
  if (!job.ok()) return job.error().code() == Code::kNotFound ? Status(job.error()) : ok();
  const json::Value& status = (*job)["status"];
  state_ = status["state"].string_or("");
  steps_done_ = status["progress"]["step"].int_or(0);
  for (const auto& condition : status["conditions"].items())
    if (condition["type"].string_view_or("") == "Failed" &&
        condition["status"].string_view_or("") == "True")
      return Error(Code::kInternal,
                   "job " + job_ + " failed: " + condition["message"].string_or(""));
  const auto& members = status["membership"]["members"].items();
  std::string last_pod;
  for (const auto& member : members) {
    const std::string pod = member["pod"].string_or("");
    if (pod.size() < last_pod.size() || (pod.size() == last_pod.size() && pod < last_pod)) continue;
    last_pod = pod;
    last_node_ = member["node"].string_or("");
  }
  const json::Value& last = status["rescales"]["last"];
  const std::int64_t generation = last["generation"].int_or(0);
  if (generation == 0 || (!rescales_.empty() && rescales_.back().generation == generation))
    return ok();
  rescales_.push_back(
      {generation, last["reason"].string_or(""), last["stallSeconds"].double_or(0)});
  return ok();
}

}  // namespace rubato::ctl
