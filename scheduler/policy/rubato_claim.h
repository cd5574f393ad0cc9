// What RubatoPolicy knows of the cluster and of each job while it decides. Private to rubato*.cc.
#pragma once

#include "scheduler/perf/goodput_table.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato.h"

#include <algorithm>

namespace rubato::sched {

// A job on one type, by GPUs on as few nodes as hold them.
class RubatoPolicy::Speed {
 public:
  Speed(const Job& job, std::string_view type, Gpus of_node)
      : goodput_(job, type), of_node_(std::max<Gpus>(of_node, 1)) {}
  double at(Gpus gpus) const { return at(gpus, (gpus + of_node_ - 1) / of_node_); }
  double at(Gpus gpus, std::int64_t nodes) const { return goodput_.at(gpus, nodes); }
  bool is_known() const { return goodput_.is_known(); }

 private:
  GoodputTable goodput_;
  Gpus of_node_;
};

struct RubatoPolicy::Cluster {
  Table<TypeIndex, Gpus> largest;  // GPUs of the largest node of each type
  Gpus each = 0;                   // sizes up to this one are all looked at
  // Of a job of which they were not measured.
  double stall_ms = 0;
  double start_ms = 0;
};

// One job while GPUs are shared out.
struct RubatoPolicy::Claim {
  JobIndex index;
  const Job* job = nullptr;
  std::optional<TypeIndex> holds;
  std::optional<TypeIndex> type;  // that it must keep, or was given
  // By type, known or not; and where most is known of it, if that is no type of the cluster.
  std::vector<Speed> curves;
  std::size_t at_known = 0;        // of `curves`: of the best type, else where most is known of it
  std::optional<TypeIndex> best;   // of those where it was measured: where it is fastest
  std::vector<double> speeds;      // at its minimum, by type: measured or guessed
  std::vector<Gpus> sizes;         // that are looked at
  double left_ms = 0;              // at its minimum, where it is fastest
  double work = 0;                 // left, in what its speeds count, times ms
  double price = 0;                // of all of it: what its end is worth to all, times ms
  double price_once_stopped = 0;   // the same, were it to wait
  std::optional<TypeIndex> tries;  // where it is to be measured: its price is the same there
  double stall_ms = 0;
  double start_ms = 0;  // until pods that start take part
  double join_ms = 0;   // and those that join
  bool starves = false;
  Gpus held = 0;
  Gpus most = 0;  // that is tried
  Gpus size = 0;
  std::int64_t value = 0;  // of that size
  const JobValues* values = nullptr;
  std::int64_t stays = 0;          // value as it is now, where it may stay so
  std::optional<TypeIndex> first;  // the only one that it looks at until all have had a turn
  std::optional<Gpus> at_most;     // until then

  const Speed& known() const { return curves[at_known]; }
};

struct RubatoPolicy::View {
  Cluster cluster;
  std::vector<Claim> claims;  // by JobIndex
};

// What nobody holds, for tries.
struct RubatoPolicy::Free {
  Table<TypeIndex, Gpus> gpus;  // that nobody else is to try
  RoomByType room;
};

// What a job would be on one type.
struct RubatoPolicy::Way {
  const Speed& speed;
  double factor = 1;     // as fast as that, times this
  bool is_held = false;  // it is there already
  double price = 0;      // of its work

  double at(Gpus gpus) const { return factor * speed.at(gpus); }
};

// To a larger size.
struct RubatoPolicy::Move {
  std::int64_t density = 0;  // value a GPU
  std::size_t place = 0;     // in order
  TypeIndex type;
  SizeValue to;
  bool operator<(const Move& other) const {
    return density != other.density ? density < other.density : place > other.place;
  }
};

}  // namespace rubato::sched
