// JobWatch: one running job as the demo sees it: its loss lines as they come, its state and its
// rescales as the operator writes them.
#pragma once

#include "tools/rubatoctl/demo/report.h"
#include "tools/rubatoctl/job_logs.h"
#include "tools/rubatoctl/session.h"

#include <functional>
#include <string>
#include <vector>

namespace rubato::ctl {

constexpr auto kStatusPoll = 300ms;

class JobWatch {
 public:
  JobWatch(Session& session, const std::string& ns, const std::string& job);
  // Takes what comes until `deadline`. Lines that are no loss lines go to `other`.
  Status pump(MonoTime deadline);

  std::function<void(const std::string& pod, const std::string& line)> other;

  const StepsSeen& steps() const { return steps_; }
  const std::vector<RescaleSeen>& rescales() const { return rescales_; }
  const std::string& state() const { return state_; }
  bool is_complete() const { return state_ == "Complete"; }
  std::int64_t steps_done() const { return steps_done_; }  // as last written
  // Of the last committed step; 0 before the first.
  std::int64_t step() const { return steps_.empty() ? 0 : steps_.rbegin()->first; }
  int gpus() const { return steps_.empty() ? 0 : steps_.rbegin()->second.line.gpus; }
  double loss() const { return steps_.empty() ? 0 : steps_.rbegin()->second.line.loss; }
  std::int64_t conflicts() const { return story_.conflicts(); }
  // The node of the member with the highest ordinal, as last written.
  const std::string& last_node() const { return last_node_; }

 private:
  void take(const PodLine& line);
  Status look();

  Session& session_;
  std::string ns_;
  std::string job_;
  JobLogs logs_;
  LossStory story_;
  StepsSeen steps_;
  std::vector<RescaleSeen> rescales_;
  std::string state_;
  std::string last_node_;
  std::int64_t steps_done_ = 0;
  MonoTime next_look_{};
};

}  // namespace rubato::ctl
