// A certificate of a plan: how far it is, at most, from the best plan that there could be.
//
// V is what the plan is worth as it is placed: each job's value at the GPUs that it holds once the
// actions are done, with what the changes cost. UB bounds what any plan is worth (weak duality):
// for any prices p >= 0 of a GPU of each type,
//
//   UB(p, q) = sum over types of p_t * C_t + sum over limits of q_l * L_l
//              + sum over jobs of max(0, max over (t, n) of v(t, n) - (p_t + q_jt) * n)
//
// with C_t the GPUs of type t that jobs hold or that are free; L_l what the jobs of a queue may
// have together by one of its limits (and at least what they hold), q_jt the prices of the limits
// that count a GPU of type t of job j; and n <= C_t and those limits. For a job that mixes types,
// or holds several, each of its GPUs costs what the cheapest does, and n is bounded by all types
// together. The bound leaves out the shape of nodes and what the policy keeps back for later, so it
// holds for every plan that keeps them, too. Prices make it tight; no prices make it wrong.
// certify() looks for good ones; check() is given them, and shares no code with policies, sessions
// and the search; but the values are the policy's own. Whether the plan can be done is asked of
// feasible.h.
//
// Most of V is often what jobs have at their minimums, which hardly any plan misses. So the gap is
// told above these, too: with m_j the value of job j, of which the plan leaves at least the
// minimum, at that minimum on the types that it then has (v_j, its value in the plan, where that is
// less), and B the sum of them,
//
//   V' = V - B,  UB' = UB - B,  gap' = (UB' - V') / UB' = (UB - V) / (UB - B)
//
// B is a number of this plan, the same whatever plan is compared with it. No plan is worth more
// than UB, so none is worth more than UB' beyond B: UB' bounds what any plan, of the same jobs or
// of others, has beyond what this one has at its minimums. 0 <= m_j <= v_j, so 0 <= V' <= UB', and
// gap <= gap' <= 1.
#pragma once

#include "scheduler/model/value_table.h"
#include "scheduler/plan.h"

#include <map>
#include <optional>
#include <string>

namespace rubato::sched {

// Of a GPU, in 2^-32 units; what is not there costs nothing.
struct Prices {
  std::map<std::string, std::int64_t> types;
  // By queue, and by the type that its limit is of ("*": all together): beside that of the type.
  std::map<std::string, std::map<std::string, std::int64_t>> limits = {};
  bool operator==(const Prices&) const = default;
};

struct Certificate {
  std::int64_t value = 0;  // V, in 2^-32 units
  std::int64_t bound = 0;  // UB, rounded up
  Prices prices;
  std::int64_t minimums = 0;  // B
  // (UB - V) / UB: 0 where nothing could be better; 1 where nothing is done though something could.
  double gap() const;
  // The same of what is above the minimums: gap'.
  double gap_above_minimums() const;
  bool operator==(const Certificate&) const = default;
};

// The value of the plan and the bound that these prices prove. `values` is of this problem. Time
// linear in the table and the pods held. CHECKs that the plan names jobs of this state.
Certificate check(const Problem& problem, const ValueTable& values, const Plan& plan,
                  const Prices& prices);

// GPUs that jobs hold, or could be given in this round.
std::map<std::string, Gpus> capacity_of(const ClusterState& state);

// At prices that are looked for (scheduler/solver/prices.h).
Certificate certify(const Problem& problem, const ValueTable& values, const Plan& plan);
// Of a plan that make_plan made of the same. None: the policy maximises nothing.
std::optional<Certificate> certify(const ClusterState& state, const PolicyConfig& config,
                                   const Plan& plan);

}  // namespace rubato::sched
