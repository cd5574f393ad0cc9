#include "operator/control/plan_check.h"

#include "common/log.h"
#include "scheduler/certificate/feasible.h"

#include <algorithm>
#include <vector>

namespace rubato::control {
namespace {

constexpr auto kCertifyEvery = 60s;
const std::vector<double> kGapBuckets{0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};

}  // namespace

void PlanCheck::look_at(const sched::Snapshot& decided_on, const sched::Plan& plan, MonoTime now) {
  const std::string& policy = decided_on.policy.policy;
  if (last_ && policy == policy_ && now - *last_ < kCertifyEvery) return;
  last_ = now;
  policy_ = policy;
  if (const std::string broken = why_infeasible(decided_on.state, plan); !broken.empty()) {
    LOG_ERROR("scheduler",
              "the plan cannot be done, for {}: a bug; --record-snapshots keeps what shows it",
              broken);
    return count("infeasible");
  }
  const auto certificate = sched::certify(decided_on.state, decided_on.policy, plan);
  if (!certificate) return;
  const bool holds = certificate->value <= certificate->bound;
  if (!holds)
    LOG_ERROR("scheduler",
              "the plan is worth {}, more than the bound {} that prices prove: a bug; "
              "--record-snapshots keeps what shows it",
              sched::amount_of(certificate->value), sched::amount_of(certificate->bound));
  count(holds ? "holds" : "broken");
  metrics_
      .histogram("rubato_plan_gap_ratio", "How far a plan is, at most, from the best one.", {},
                 kGapBuckets)
      .observe(std::max(certificate->gap(), 0.0));
}

void PlanCheck::count(const std::string& result) {
  metrics_
      .counter("rubato_plan_certificates_total",
               "Plans that were held to a bound on all plans, and plans that cannot be done.",
               {{"result", result}})
      .add();
}

}  // namespace rubato::control
