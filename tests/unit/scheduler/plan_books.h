// Whether a plan is sound: it can be done (scheduler/certificate/feasible.h), and nobody is stopped
// but by leave; by none of the code that makes plans.
#pragma once

#include "scheduler/certificate/feasible.h"
#include "scheduler/plan.h"

#include <algorithm>
#include <map>
#include <variant>

#include <gtest/gtest.h>

namespace rubato::sched {

class Books {
 public:
  Books(const ClusterState& state, const Plan& plan) : state_(state), plan_(plan) {
    for (const Job& job : state.jobs) by_id_[job.id] = &job;
  }

  void expect_sound() const {
    EXPECT_EQ(why_infeasible(state_, plan_), "");
    for (const Action& action : plan_.actions) expect_leave(action);
  }

 private:
  const Job& job(const JobId& id) const { return *by_id_.at(id); }

  // Nobody is stopped but by leave: of the queue and the job that displaces it, never for a lower
  // priority, and a guarantee only takes back what is borrowed.
  void expect_leave(const Action& action) const {
    if (action.kind != ActionKind::kPreempt) return;
    const auto* cause = std::get_if<Displaced>(&action.cause);
    EXPECT_TRUE(cause != nullptr || std::holds_alternative<ChangesType>(action.cause) ||
                std::holds_alternative<ChangesNodes>(action.cause) ||
                std::holds_alternative<StopsSharing>(action.cause) ||
                std::holds_alternative<PodLost>(action.cause))
        << action.job << " " << to_text(action.cause);
    if (cause == nullptr) return;
    const Job& victim = job(action.job);
    const Job& by = *std::ranges::find(state_.jobs, cause->job, &Job::name);
    if (cause->by == Displaced::By::kGuarantee) {
      // For its cells a queue stops its own jobs, too, that are in none.
      if (state_.queues.at(by.queue).cells.empty()) {
        EXPECT_NE(victim.queue, by.queue) << victim.id;
      }
      return;
    }
    EXPECT_TRUE(by.may_preempt) << victim.id << " by " << by.id;
    if (cause->by == Displaced::By::kPriority) {
      EXPECT_LT(victim.priority, by.priority) << victim.id;
    }
    if (cause->by == Displaced::By::kOrder) {
      EXPECT_LE(victim.priority, by.priority) << victim.id;
    }
    const Preempts leave = state_.queues.at(by.queue).preempts;
    EXPECT_NE(leave, Preempts::kNobody) << victim.id << " by " << by.id;
    if (leave == Preempts::kOwnQueue) {
      EXPECT_EQ(victim.queue, by.queue) << victim.id;
    }
  }

  const ClusterState& state_;
  const Plan& plan_;
  std::map<JobId, const Job*> by_id_;
};

}  // namespace rubato::sched
