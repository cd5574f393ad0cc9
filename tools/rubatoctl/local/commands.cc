#include "tools/rubatoctl/local/commands.h"

#include "common/words.h"
#include "tools/rubatoctl/local/process.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/view/text_table.h"

#include <cstdio>
#include <filesystem>
#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace rubato::ctl {

namespace fs = std::filesystem;
using json::Value;

namespace {

LocalSettings settings_for(const std::string& state, const std::string& crds,
                           const localnode::GpuPaths& gpu_paths = {}) {
  LocalSettings settings;
  settings.gpu_paths = gpu_paths;
  settings.state = fs::absolute(state).string();
  settings.programs = program_folder();
  settings.crds = crds;
  settings.say = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  return settings;
}

std::string node_state(const Value& node) {
  std::string text = "NotReady";
  for (const auto& condition : node["status"]["conditions"].items())
    if (condition["type"].string_view_or("") == "Ready" &&
        condition["status"].string_view_or("") == "True")
      text = "Ready";
  if (node["spec"]["unschedulable"].bool_or(false)) text += ",SchedulingDisabled";
  return text;
}

// A node is alive as long as it renews its Lease; Kubernetes itself needs a minute to say so.
std::string heartbeat(const Value& lease, WallTime now) {
  const auto renewed = parse_rfc3339(lease["spec"]["renewTime"].string_view_or(""));
  if (!renewed.ok()) return "-";
  const auto limit = std::chrono::seconds(lease["spec"]["leaseDurationSeconds"].int_or(40));
  return human_duration(now - *renewed) + " ago" + (now - *renewed > limit ? " (silent)" : "");
}

std::string gpus_of(const Value& node) {
  std::string text;
  for (const char* resource : {kSlotResource, "nvidia.com/gpu"}) {
    const Value& amount = node["status"]["allocatable"][resource];
    if (!amount.is_null()) text += (text.empty() ? "" : " ") + amount.string_or("");
  }
  return text.empty() ? "0" : text;
}

// The example finds its text; a cluster is of use without it, too.
void bring_example(Executor& executor, const LocalCluster& cluster) {
  const DataPlace place;
  if (fs::exists(cluster.claim_folder(place.ns, place.claim) + "/" + place.file)) return;
  const auto put = put_bible(executor, cluster, place, is_interrupted);
  if (put.ok())
    fmt::print(stderr, "the King James Bible is in claim {}, for examples/gpt-kjv.yaml\n",
               place.claim);
  else
    fmt::print(stderr, "examples/gpt-kjv.yaml has no text to learn: {}\n", put.error().what());
}

// What an `up` that was interrupted leaves behind, and what stops it.
Error interrupted(const LocalCluster& cluster, const std::string& state) {
  std::vector<std::string> names;
  for (const ProcessState& process : cluster.processes())
    if (process.running) names.push_back(process.name);
  return Error(Code::kCancelled,
               names.empty() ? "interrupted; nothing of it runs"
                             : fmt::format("interrupted; these run on: {}; `rubatoctl local "
                                           "down{}` stops them",
                                           fmt::join(names, ", "), state_words(state)));
}

// Their minors; says which they are.
Result<std::vector<int>> gpus_for(const GpuChoice& choice) {
  std::vector<int> minors;
  if (choice.wanted.empty()) return minors;
  TRY(const auto found, localnode::find_gpus(choice.paths));
  TRY(const auto chosen, localnode::choose_gpus(found, choice.wanted));
  for (const localnode::Gpu& gpu : chosen) minors.push_back(gpu.minor);
  fmt::print(stderr, "GPUs {} of this machine: {}\n", localnode::minors_of(chosen),
             chosen.front().product);
  return minors;
}

}  // namespace

std::string program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::string shared_folder(const std::string& name) {
  const std::string installed = program_folder() + "/../share/rubato/" + name;
  return fs::exists(installed) ? installed : RUBATO_SOURCE_DIR "/" + name;
}

Result<std::string> crds_folder(const std::string& given) {
  if (!given.empty()) {
    if (fs::exists(given)) return given;
    return Error(Code::kNotFound, "--crds " + given + " does not exist");
  }
  const std::string folder = shared_folder("crds");
  if (fs::exists(folder + "/trainingjobs.yaml")) return folder;
  return Error(Code::kNotFound,
               "the CustomResourceDefinitions are neither in share/rubato/crds beside this program "
               "nor in the source tree\n  What to do: name their folder with --crds DIR");
}

std::string state_words(const std::string& state) {
  const std::string folder = fs::absolute(state).lexically_normal().string();
  const bool is_usual = folder == fs::absolute(default_local_state()).lexically_normal().string();
  return is_usual ? "" : " --state " + shell_word(folder);
}

Status local_up(Executor& executor, const UpOptions& options) {
  TRY(const std::string crds, crds_folder(options.crds));
  TRY(const std::vector<int> gpus, gpus_for(options.gpus));
  LocalSettings settings = settings_for(options.state, crds, options.gpus.paths);
  settings.is_interrupted = is_interrupted;
  TRY(const auto cluster, LocalCluster::open(executor, std::move(settings), true));
  catch_interrupts();
  const Status up = cluster->up(options.nodes.value_or(gpus.empty() ? 2 : 1), options.slots, gpus);
  if (up.ok()) bring_example(executor, *cluster);
  if (is_interrupted()) return interrupted(*cluster, options.state);
  if (!up.ok()) return up;
  fmt::print(stderr, "\nThe cluster is up. Use it with kubectl or rubatoctl:\n\n");
  fmt::print("export KUBECONFIG={}\n", shell_word(cluster->kubeconfig()));
  const std::string state = state_words(options.state);
  fmt::print(stderr,
             "\n  rubatoctl apply -f examples/gpt-kjv.yaml      rubatoctl get tj -w\n"
             "  rubatoctl top\n"
             "  rubatoctl node add{0}\n"
             "  rubatoctl local down{0}\n",
             state);
  return ok();
}

Status local_data(Executor& executor, const std::string& state,
                  const std::vector<std::string>& texts, const DataPlace& place) {
  TRY(const auto cluster, LocalCluster::open(executor, settings_for(state, ""), false));
  const auto go_on = [] { return false; };
  TRY(const std::uint64_t bytes, texts.empty()
                                     ? put_bible(executor, *cluster, place, go_on)
                                     : put_texts(executor, *cluster, texts, place, go_on));
  fmt::print("{:.1f} MB of text in claim {}/{}: a job that mounts it at /data reads /data/{}\n",
             static_cast<double>(bytes) / 1e6, place.ns, place.claim, place.file);
  return ok();
}

Status local_down(Executor& executor, const std::string& state, bool purge,
                  std::chrono::seconds grace) {
  TRY(const auto cluster, LocalCluster::open(executor, settings_for(state, ""), false));
  TRY_OK(cluster->down(grace));
  if (purge) TRY_OK(cluster->purge());
  fmt::print(
      "The local cluster is stopped{}.\n",
      purge ? " and its state removed" : "; its state stays in " + fs::absolute(state).string());
  return ok();
}

Status local_status(Executor& executor, const std::string& state) {
  TRY(const auto cluster, LocalCluster::open(executor, settings_for(state, ""), false));
  TextTable table{{"PROCESS", "STATE", "PID", "LOG"}, {}};
  bool any = false;
  bool all = true;
  for (const ProcessState& process : cluster->processes()) {
    any = any || process.running;
    all = all && process.running;
    table.rows.push_back({process.name, process.running ? "running" : "off",
                          process.running ? std::to_string(process.id.pid) : "-", process.log});
  }
  std::fputs(render(table).c_str(), stdout);
  if (any) fmt::print("\nexport KUBECONFIG={}\n", shell_word(cluster->kubeconfig()));
  if (!all) fmt::print("\n`rubatoctl local up{}` starts what is off.\n", state_words(state));
  return ok();
}

Status node_add(Executor& executor, const std::string& state, const std::string& name,
                std::optional<int> slots, const GpuChoice& choice) {
  TRY(const std::vector<int> gpus, gpus_for(choice));
  TRY(const auto cluster,
      LocalCluster::open(executor, settings_for(state, "", choice.paths), false));
  TRY(const std::string added, cluster->add_node(name, slots, gpus));
  fmt::print("node/{} added\n", added);
  return ok();
}

Status node_kill(Executor& executor, const std::string& state, const std::string& name) {
  TRY(const auto cluster, LocalCluster::open(executor, settings_for(state, ""), false));
  TRY_OK(cluster->kill_node(name));
  fmt::print("node/{0} lost its power (`rubatoctl node add --name {0}{1}` switches it on again)\n",
             name, state_words(state));
  return ok();
}

Status node_list(Session& session) {
  TRY(const std::vector<Value> nodes, session.list(kube::types::kNode, ""));
  TRY(const std::vector<Value> pods, session.list(kube::types::kPod, ""));
  // Who may not read them sees the nodes all the same.
  const auto leases = session.list(kube::types::kLease, "kube-node-lease");
  std::fputs(nodes_text(nodes, leases.value_or({}), pods, session.wall()).c_str(), stdout);
  return ok();
}

std::string nodes_text(const std::vector<Value>& nodes, const std::vector<Value>& leases,
                       const std::vector<Value>& pods, WallTime now) {
  std::map<std::string, std::string> heartbeats;
  for (const Value& lease : leases) heartbeats[kube::name_of(lease)] = heartbeat(lease, now);
  std::map<std::string, int> bound;
  for (const Value& pod : pods) ++bound[pod["spec"]["nodeName"].string_or("")];
  TextTable table{{"NAME", "STATUS", "HEARTBEAT", "TYPE", "GPUS", "PODS", "AGE"}, {}};
  for (const Value& node : nodes) {
    const std::string name = kube::name_of(node);
    const auto beat = heartbeats.find(name);
    const auto since = parse_rfc3339(node["metadata"]["creationTimestamp"].string_view_or(""));
    table.rows.push_back({name, node_state(node), beat == heartbeats.end() ? "-" : beat->second,
                          node["metadata"]["labels"]["nvidia.com/gpu.product"].string_or("-"),
                          gpus_of(node), std::to_string(bound[name]),
                          since.ok() ? human_duration(now - *since) : "-"});
  }
  return table.rows.empty() ? "No nodes. `rubatoctl node add` adds one to a local cluster.\n"
                            : render(table);
}

}  // namespace rubato::ctl
