// How long an iteration of a job with a fixed global batch takes under an execution plan, and the
// parameters of that from iterations that were observed. The terms are those of Rubick (MLSys'25;
// "Morphling" in its artifact), with one parameter each instead of its constants of a model, and
// with the network cards of a node. Pure; seconds.
//
// For P pipeline stages, T tensor shards and D data-parallel replicas, on nodes with c cards each:
//   compute    = C / (T D)                a third of it forward; recomputing adds a share of it
//   tensor     = k_tensor (T - 1) / (T D)
//   pipeline   = k_pipeline (P - 1) / D   without speed-up: these jobs do not overlap their stages
//   gradients  = k (D - 1) / (D P T)      where a stage's T D GPUs are on one node, else
//                k_card (D - 1) / (D P c) as T rings of 1 / (P T) of the model share the cards
//                and where a node has an odd number of GPUs, for each of the D - 1 steps of a ring
//                also k_between / P where it goes from one node to another (nodes - 1 of them) or
//                k_within / P where it stays; with offloading nothing of the kind was measured
//   update     = k_update / (P T), by D too where the optimizer is sharded
//   offloading = a + b / D                instead of the update
//   iteration  = forward + tensor + pipeline + overlapped(backward, gradients, gamma)
//                + update or offloading + constant
// A sharded optimizer scales `gradients` by a factor of its own (reduce-scatter and all-gather).
// Plans of three dimensions run in another framework than plain data parallelism, with a C of its
// own.
#pragma once

#include "common/result.h"
#include "scheduler/model/cluster_state.h"

#include <cstdint>
#include <vector>

namespace rubato::sched {

constexpr std::size_t kPlanObservationsMax = 100'000;
constexpr double kPlanPull = 1e-4;
constexpr double kPlanOutlier = 0.05;

enum class Technique {
  kPlain,             // data-parallel, gradients accumulated
  kRecompute,         // … activations computed again in the backward pass
  kShardedOptimizer,  // … ZeRO-DP
  kOffload,           // … ZeRO-Offload: optimizer on the CPU
  kThreeDimensional,  // pipeline, tensor and data parallelism
};

struct ExecutionPlan {
  Technique technique = Technique::kPlain;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t data = 1;
};

// Where it runs.
struct PlanLayout {
  Gpus gpus_per_node = 1;  // on the node that has fewest of them
  std::int64_t cards = 1;  // network cards for those
  std::int64_t nodes = 1;
  bool is_paired = true;  // every node has an even number of GPUs
};

struct PlanObservation {
  ExecutionPlan plan;
  PlanLayout layout;
  double iteration_s = 0;  // 1e-9 to 1e9
};

struct PlanModel {
  double compute = 1;     // s of the whole batch on one GPU
  double compute_3d = 1;  // … in three dimensions
  double tensor = 0;
  double pipeline = 0;
  double node_gradients = 0;
  double card_gradients = 0;
  double sharded_factor = 1;
  double unpaired_between = 0;
  double unpaired_within = 0;
  double recompute = 0;  // share of the compute
  double update = 0;
  double offload = 0;
  double offload_shared = 0;  // by D
  double constant = 0;
  double gamma = 1;

  double iteration_s(const ExecutionPlan& plan, const PlanLayout& layout) const;
};

// Minimises the root mean square error of the logarithm, in which errors beyond about kPlanOutlier
// count by their size and not its square (pseudo-Huber: a plan that was measured with another batch
// does not bend the rest), and a weak pull (kPlanPull per squared logarithm) towards what Rubick
// assumes or, of overheads, a small share of the compute, from fixed starts: what no observation
// tells stays there. kInvalid: none, too many, or one out of bounds.
Result<PlanModel> fit_plans(const std::vector<PlanObservation>& observations);

}  // namespace rubato::sched
