// WholeCluster: a whole installation in virtual time. Real: two Operators (scheduler loop, job
// controller, coordinator, informers, leader election), the in-memory API server, the agents of all
// pods, their workers (WorkerProcess). Modelled: nodes with their kubelets (ModelNode), the node
// lifecycle controller, and people who submit, suspend, scale and delete jobs. All that is random
// comes from the seed; equal seeds give equal runs.
#pragma once

#include "common/net/certificates.h"
#include "tests/sim/replica.h"

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace rubato::sim {

// The one that signs in all stories: what it signs is never looked at, and keys take time to make.
const net::KeyPair& authority();

// A refusal ends the story at once: it goes on, and is judged, by what it asked the API server for.
void must(const kube::Answer<kube::Written>& written);

struct RunOptions {
  bool aloud = false;                  // tell the story while it happens
  bool listening = false;              // keep it
  control::RoundRecorder record = {};  // of both operators
  Duration quiet_limit = 400s;         // after the last fault: every job that can finish must have
};

struct RunResult {
  bool ok = false;
  std::string what;  // when not ok
  double virtual_seconds = 0;
  std::uint64_t decisions = 0;  // of workers
  std::uint64_t generations = 0;
  std::uint64_t members = 0;  // of the largest generation that stood
  std::uint64_t writes = 0;   // of operators
  std::uint64_t lives = 0;    // of operators
  std::uint64_t digest = 0;
  Coverage coverage;
  std::vector<std::string> story;
};

class WholeCluster {
 public:
  explicit WholeCluster(Scenario scenario, RunOptions options = {});
  ~WholeCluster();

  // The whole story: start, trouble, a quiet end.
  RunResult run();

  // Pieces, for tests that tell a story of their own.
  void start();
  bool run_until(const std::function<bool()>& done, Duration limit);  // stops at a violation
  bool all_finished() const;
  void inject(const Fault& fault);
  // For stories in which jobs come and go. `forget`: what the harness and the volume keep of a job
  // that was deleted and has no process left; false: not yet.
  void submit(const JobPlan& plan);
  bool forget(const std::string& job);
  void move_operators();  // to another namespace, with the same trust
  std::string_view running() const { return executor_.running(); }  // process
  MonoTime now() const { return executor_.now(); }
  Replica* leader();  // null: nobody leads
  const std::optional<std::string>& violation() const { return story_.violation(); }
  const Witness& witness() const { return witness_; }
  World& world(const std::string& job);              // it was submitted
  kube::MemoryServer& server() { return *server_; }  // for what people and controllers do there
  ModelNode& node(const std::string& name);
  testing::SimVolume& volume() { return checkpoints_; }  // that all nodes share
  const Coverage& coverage() const { return coverage_; }

 private:
  struct Job {
    JobPlan plan;
    std::string uid;
    bool submitted = false;
    bool deleted = false;
    std::unique_ptr<World> world;
  };

  // It waits for a worker to reach its phase.
  struct ArmedFault {
    Fault fault;
    std::uint64_t pass = 0;  // so many do so unharmed
  };

  // Between the first time that links of a node to others broke and the last that they did not.
  struct Parted {
    MonoTime first{};
    MonoTime last{};
  };

  // It could train and does not.
  struct Idle {
    MonoTime since{};
    bool hangs = false;
  };

  void install();
  void add_namespace(const std::string& ns);  // of an installation, with what it trusts
  void submit(Job& job);
  void look_after_nodes();  // the node lifecycle controller, the pod collector
  void sync_node(std::size_t index);
  void calm();
  void look_for_idle_pods();  // from the last fault on
  bool waits_to_train(const SeenPod& pod);
  bool is_held_up(const std::string& job_uid) const;
  Duration links_wait(const std::string& node) const;
  Result<LastCheckpoint> last_checkpoint(const Job& job);
  // The instruction set of the nodes whose bits its states have; "" before its first generation.
  std::string isa_of(const Job& job) const;
  bool can_finish(const Job& job) const;
  std::string why_not_over() const;
  std::string unexplained();
  std::string unexplained_end(const Job& job, const json::Value& status);
  const json::Value* status_of(const Job& job) const;
  bool is_true(const Job& job, const char* condition) const;
  World* world_of(const std::string& uid) const;
  ModelNode* node_of_pod(const std::string& pod_uid) const;
  bool is_allocated(const std::string& pod_uid) const;
  bool is_heard(const std::string& pod_uid);
  void later(Duration wait, std::function<void()> act) {
    executor_.at(executor_.now() + wait, std::move(act));
  }

  // whole_phases.cc: where workers are when a fault strikes
  bool reached(Container& container, std::uint32_t slot, Phase phase);
  void strike(const Fault& fault, const std::string& pod_uid, std::uint32_t slot);
  void kill_worker_of(Container& container, std::uint32_t slot);
  void hang_worker_of(const Fault& fault, Container& container, std::uint32_t slot);
  void note_met(FaultKind kind, const Container& container);
  void note_met(FaultKind kind, ModelNode& node);
  void note_met(FaultKind kind, const Job& job);
  void note_met_by_all(FaultKind kind);

  // whole_faults.cc, whole_api_faults.cc
  void inject_now(const Fault& fault);
  ModelNode* pick_node(const Fault& fault, bool up = true);
  Container* pick_container(const Fault& fault);
  Job* pick_job(const Fault& fault);
  void trouble_everywhere();
  void on_node(const Fault& fault, void (WholeCluster::*act)(const Fault&, ModelNode&));
  void cut_power(const Fault& fault, ModelNode& node);
  void lose_node(const Fault& fault, ModelNode& node);
  void cut_node(const Fault& fault, ModelNode& node);
  void cut_from_operator(const Fault& fault, ModelNode& node);
  void part_nodes(const Fault& fault, ModelNode& node);
  void cut_pair(const Fault& fault, const std::string& a, const std::string& b);
  void note_parted(const std::string& node);
  void freeze_node(const Fault& fault, ModelNode& node);
  void cordon(const Fault& fault, ModelNode& node);
  void set_cordoned(const std::string& node, bool on);
  void idle_node(const Fault& fault, ModelNode& node);
  void reset(const Fault& fault, ModelNode& node);
  void on_pod(const Fault& fault, void (WholeCluster::*act)(const Fault&, Container&));
  void freeze_pod(const Fault& fault, Container& container);
  void crash_pod(const Fault& fault, Container& container);
  void kill_worker(const Fault& fault, Container& container);
  void hang_worker(const Fault& fault, Container& container);
  void delete_pod(const Fault& fault, Container& container);
  void on_job(const Fault& fault, void (WholeCluster::*act)(const Fault&, Job&));
  void suspend(const Fault& fault, Job& job);
  void scale(const Fault& fault, Job& job);
  void delete_job(const Fault& fault, Job& job);
  void slow_network(const Fault& fault);
  void double_messages(const Fault& fault);
  void split(const Fault& fault);
  void api_fault(const Fault& fault);
  void operator_fault(const Fault& fault);
  void patch_job(const Job& job, json::Value spec);

  // whole_more_faults.cc
  void disk_fault(const Fault& fault);
  void flip_bit(const Fault& fault, Job& job);
  void flip_memory(const Fault& fault, Container& container);
  void starve(const Fault& fault);
  void starve_agent(const Fault& fault, Container& container);
  void starve_worker(const Fault& fault, Container& container);
  void jump_clock(const Fault& fault, ModelNode& node);
  void add_bad_node(const Fault& fault);
  void delete_lease();
  void delete_secret(const Fault& fault, Job& job);
  void delete_pod_at_once(const Fault& fault, Container& container);
  void delete_node_object(const Fault& fault, ModelNode& node);
  void recreate_job(const Fault& fault, Job& job);
  void again(Duration wait, Job& job);
  void lose_many(const Fault& fault);
  void add_node(NodePlan plan);

  // whole_leaving_nodes.cc
  void take_away(const Fault& fault, ModelNode& node);
  void announce(const std::string& node, FaultKind kind);
  void take_back(const std::string& node);  // what was announced of it
  void tell_pods_to_end(const std::string& node);
  void end_maintained(ModelNode& node);
  void end_reclaimed(ModelNode& node);

  // whole_rare_faults.cc
  void lose_lease();
  void restore_store(const Fault& fault);
  void restore_job(Job& job, const kube::ObjectStore::Backup& backup);
  void resize(const Fault& fault, Job& job);
  void change_policy(const Fault& fault);
  void change_version(const Fault& fault);
  void restart_operators();

  const Scenario scenario_;
  const RunOptions options_;
  testing::SimExecutor executor_;
  testing::SimNetwork network_;
  mutable testing::SimVolume data_;         // that all nodes share
  mutable testing::SimVolume checkpoints_;  // that most share, too; also to be looked at
  Links links_;
  Story story_;
  testing::SimProcess& server_process_;
  std::unique_ptr<kube::MemoryServer> server_;
  Witness witness_;
  Doubling doubling_;
  bool is_next_version_ = false;  // what starts now
  Ground ground_;
  WriteCrashes crashes_;
  std::vector<std::unique_ptr<ModelNode>> nodes_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::list<Job> jobs_;
  std::map<std::string, std::unique_ptr<World>> retired_;  // of jobs that came again, by uid
  std::map<std::string, MonoTime> unready_;                // nodes, since when
  std::map<std::string, Idle> idle_;                       // pods by uid
  std::map<std::string, Parted> parted_;                   // nodes
  std::vector<ArmedFault> armed_;
  Coverage coverage_;
  bool has_noted_ = false;  // whom the present fault met
  bool over_ = false;
};

}  // namespace rubato::sim
