// From shares to leases: who runs on which GPU type in one round, so that over many rounds each job
// has of each type the share that it should have (Gavel, OSDI'20, section 5). Whoever is furthest
// behind its share goes first:
//
//   priority[m][j] = share[m][j] / received[m][j]
//
// received: the part of the job's life that it has spent on the type so far. Gavel's artifact
// counts from the last change of the shares; here it is a job's whole life, which is in the
// ClusterState (Job::attained_by_type), so that a new leader goes on where the old one was. Types
// are filled one after the other, the fastest first; GPUs that nobody has a share of go to whoever
// can use them.
#pragma once

#include "scheduler/policy/policy.h"
#include "scheduler/policy/room.h"

#include <optional>
#include <vector>

namespace rubato::sched {

// What a job wants of a round.
struct RoundClaim {
  JobIndex job;
  Gpus gpus = 0;
  std::vector<double> share;     // by type
  std::vector<double> received;  // by type
  std::vector<char> can_use;     // by type: not 0, it can, now
  std::optional<TypeIndex> holds;
  bool keeps = false;  // its lease is not over: it goes on where it is
};

// Rounds of one length, one after the other since time began. Turns change in the first part of a
// round, so that one in which a plan came late is not cut short.
struct RoundClock {
  TimeMs begin_ms = 0;
  TimeMs next_ms = 0;
  bool is_changing = false;
};
RoundClock round_clock(TimeMs now_ms, TimeMs round_ms);

// The claim of a job of the size of its minimum, for policies to which all types are one: its share
// is none, it has received as much as all others, and where it holds a type it can use no other.
// None: it takes no part, or has no room anywhere.
std::optional<RoundClaim> claim_of(const Problem& problem, JobIndex job, const RoundClock& clock,
                                   RoomByType& room);

// A round of a policy that leases: order and types of its Targets. First who goes on, then who
// changes its type (it gives GPUs that others wait for), then those that stay or start, in the
// order in which they were picked; behind them who has no turn. `types`: in the order in which they
// are filled.
Targets leases_of(const Problem& problem, const std::vector<RoundClaim>& claims, Room& room,
                  const std::vector<TypeIndex>& types);

// The parts of a job's time until `at_ms` that it has spent on each type; 1 from there on counts as
// always. A life below `least_ms` counts as one of so long.
std::vector<double> received_by_type(const Problem& problem, JobIndex job, Gpus gpus, TimeMs at_ms,
                                     TimeMs least_ms);

}  // namespace rubato::sched
