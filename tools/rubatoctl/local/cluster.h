// LocalCluster: a whole cluster of processes on this machine: one rubato-apiserver, two
// rubato-operators, any number of rubato-localnodes. What it is stands in its state folder, so
// every command can pick it up again:
//
//   cluster.json        the 127.x network, the operators' ports, the nodes (address, slots, GPUs)
//   apiserver/          journal, certificates, kubeconfig     pids/  logs/
//   nodes/NAME/         pods of a node                        claims/NS/NAME/  volumes
//
// One thread. Calls that wait say for how long at most; progress lines go to `say`.
#pragma once

#include "common/executor.h"
#include "common/json.h"
#include "tools/localnode/gpus.h"
#include "tools/rubatoctl/local/ports.h"
#include "tools/rubatoctl/local/process.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rubato::ctl {

constexpr auto kStartLimit = 60s;  // for a process to be ready
constexpr auto kLeaseSeconds = 3;  // of the leading operator: a fail-over takes this long
constexpr int kNodesMax = 64;
constexpr int kOperators = 2;
inline constexpr const char* kSlotResource = "rubato.dev/slot";
inline constexpr const char* kOperatorNamespace = "rubato-system";

struct LocalSettings {
  std::string state;
  std::string programs;  // folder of rubato-apiserver, rubato-operator, rubato-localnode …
  std::string crds;      // folder of the CustomResourceDefinitions
  localnode::GpuPaths gpu_paths;
  bool ends_with_us = false;  // its processes end when the calling thread does
  std::function<void(const std::string&)> say;
  std::function<bool()> is_interrupted;  // asked while it waits; null: never
};

struct LocalNode {
  std::string name;
  int number = 0;  // its address is 127.<network>.<number>.1
  int slots = 1;
  std::vector<int> gpus = {};  // minors of this machine's GPUs that are its slots; empty: of none
};

// cluster.json
struct LocalRecord {
  int network = 0;
  std::vector<int> operator_ports;
  std::vector<LocalNode> nodes;
  int next_number = 1;
};
json::Value encode(const LocalRecord& record);
Result<LocalRecord> decode_local_record(const json::Value& value);
// The node of this name, added with the next number and a fresh name when there is none.
LocalNode& node_of(LocalRecord& record, const std::string& name, int slots);
// As a Node's name and that of its files: a DNS label, or empty (a fresh one is found). kInvalid.
Status check_node_name(const std::string& name);
// A new node with those of `gpus` that no other has. kInvalid: there are none, or the name is
// taken.
Result<LocalNode> add_gpu_node(LocalRecord& record, const std::string& name,
                               const std::vector<int>& gpus);
// The node of this name, or a new one with so many slots, or one. kInvalid: it has another number.
Result<LocalNode> add_slot_node(LocalRecord& record, const std::string& name,
                                std::optional<int> slots);
// Adds nodes until there are `nodes`. To the new ones those of `gpus` are dealt that no other has;
// when `gpus` is empty they only play GPUs. kInvalid, with what to do: there are fewer of them than
// new nodes, or no node is new.
Status add_nodes(LocalRecord& record, int nodes, int slots, const std::vector<int>& gpus);

struct ProcessState {
  std::string name;  // "apiserver", "operator-0", "node-n1"
  ProcessId id;
  bool running = false;
  std::string log;
};

class LocalCluster {
 public:
  // Takes the state folder's lock for as long as it lives, and once it chose a network, that.
  // kUnavailable when another command holds the lock. `create`: the folder is made when missing,
  // else kNotFound; kInvalid when it is no cluster's and holds other files.
  static Result<std::unique_ptr<LocalCluster>> open(Executor& executor, LocalSettings settings,
                                                    bool create);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Starts what does not run, so that at least `nodes` nodes do, and waits until all is ready.
  // kCancelled: interrupted; what was started runs on.
  Status up(int nodes, int slots, const std::vector<int>& gpus = {});
  // Stops everything, in order; what still runs after `grace` is killed.
  Status down(Duration grace);
  // Removes what is the cluster's, and the state folder when nothing else is in it. Nothing may
  // run.
  Status purge();
  std::vector<ProcessState> processes() const;

  // Returns the node's name; waits until it is Ready. An existing name that is off is switched on.
  // A new node has the unused ones of `gpus`; kInvalid when there are none. One that does not come
  // up is stopped and forgotten.
  Result<std::string> add_node(const std::string& name, std::optional<int> slots,
                               const std::vector<int>& gpus = {});
  // A power cut: SIGKILL to the process group. kNotFound when no such node runs.
  Status kill_node(const std::string& name);

  const LocalRecord& record() const { return record_; }
  std::string kubeconfig() const;
  std::string claim_folder(const std::string& ns, const std::string& name) const;
  std::string log_of(const std::string& process) const;

 private:
  LocalCluster(Executor& executor, LocalSettings settings);
  Status load();
  Status save() const;
  std::string pid_file(const std::string& process) const;
  bool runs(const std::string& process) const;
  Status start(const std::string& process, std::vector<std::string> arguments);
  Status choose_network();
  Status take_free_network();
  Status start_apiserver();
  Status start_operators();
  Status prepare_api();
  Status start_node(const LocalNode& node);
  Status bring_up(const LocalNode& node);
  Status forget_node(const std::string& name);
  Status wait_for_api();
  Status wait_for_leader(WallTime since);
  Status wait_for_nodes(const std::vector<std::string>& names, WallTime since);
  // Polls `ready` until it holds; ends early with the log when the process has died.
  Status wait_until(const std::string& what, const std::vector<std::string>& processes,
                    const std::function<bool()>& ready);
  void say(const std::string& text) const;

  Executor& executor_;
  LocalSettings settings_;
  LocalRecord record_;
  std::optional<NetworkClaim> claim_;  // of the record's network, once it was chosen here
  int lock_ = -1;
};

}  // namespace rubato::ctl
