#include "common/check.h"
#include "scheduler/admission.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/plan.h"
#include "scheduler/policy/registry.h"
#include "scheduler/session/session.h"

namespace rubato::sched {

Plan make_plan(const ClusterState& state, const Policy& policy, const PolicyConfig& config) {
  Problem problem(state);
  admit_by_load(problem, config.max_load);
  const Targets targets = policy.decide(problem);
  return Session(problem, targets, config).run();
}

Plan make_plan(const ClusterState& state, const PolicyConfig& config) {
  const auto policy = make_policy(config.policy, config.parameters);
  CHECK(policy.ok());
  return make_plan(state, **policy, config);
}

std::optional<Certificate> certify(const ClusterState& state, const PolicyConfig& config,
                                   const Plan& plan) {
  const auto policy = make_policy(config.policy, config.parameters);
  CHECK(policy.ok());
  Problem problem(state);
  admit_by_load(problem, config.max_load);
  const auto values = (*policy)->values(problem);
  if (!values) return std::nullopt;
  return certify(problem, *values, plan);
}

}  // namespace rubato::sched
