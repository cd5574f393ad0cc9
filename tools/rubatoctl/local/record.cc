// cluster.json
#include "common/dns_names.h"
#include "common/words.h"
#include "tools/rubatoctl/local/cluster.h"

#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace rubato::ctl {

namespace {

// Of these GPUs those that are of no node yet.
std::vector<int> unused_gpus(const LocalRecord& record, const std::vector<int>& gpus) {
  std::vector<int> unused = gpus;
  for (const LocalNode& node : record.nodes)
    for (const int used : node.gpus) std::erase(unused, used);
  return unused;
}

}  // namespace

json::Value encode(const LocalRecord& record) {
  json::Value ports = json::Value::array();
  for (const int port : record.operator_ports) ports.push_back(port);
  json::Value nodes = json::Value::array();
  for (const LocalNode& node : record.nodes) {
    json::Value gpus = json::Value::array();
    for (const int gpu : node.gpus) gpus.push_back(gpu);
    nodes.push_back(json::Value::object({{"name", node.name},
                                         {"number", node.number},
                                         {"slots", node.slots},
                                         {"gpus", std::move(gpus)}}));
  }
  return json::Value::object({{"network", record.network},
                              {"operatorPorts", std::move(ports)},
                              {"nodes", std::move(nodes)},
                              {"nextNumber", record.next_number}});
}

Result<LocalRecord> decode_local_record(const json::Value& value) {
  LocalRecord record;
  record.network = static_cast<int>(value["network"].int_or(0));
  record.next_number = static_cast<int>(value["nextNumber"].int_or(1));
  for (const auto& port : value["operatorPorts"].items())
    record.operator_ports.push_back(static_cast<int>(port.int_or(0)));
  for (const auto& item : value["nodes"].items()) {
    record.nodes.push_back({item["name"].string_or(""), static_cast<int>(item["number"].int_or(0)),
                            static_cast<int>(item["slots"].int_or(1))});
    for (const auto& gpu : item["gpus"].items())
      record.nodes.back().gpus.push_back(static_cast<int>(gpu.int_or(0)));
    if (record.nodes.back().name.empty() || record.nodes.back().number <= 0)
      return Error(Code::kInvalid, "a node without name or number");
  }
  if (record.network <= 0 || record.network > 255)
    return Error(Code::kInvalid, "network is not a byte of an address");
  return record;
}

LocalNode& node_of(LocalRecord& record, const std::string& name, int slots) {
  const auto has = [&](const std::string& wanted) {
    return std::find_if(record.nodes.begin(), record.nodes.end(),
                        [&](const LocalNode& node) { return node.name == wanted; });
  };
  if (!name.empty())
    if (const auto found = has(name); found != record.nodes.end()) return *found;
  LocalNode node{name, record.next_number++, slots};
  if (node.name.empty()) {
    node.name = fmt::format("n{}", node.number);
    for (int suffix = 2; has(node.name) != record.nodes.end(); ++suffix)
      node.name = fmt::format("n{}-{}", node.number, suffix);
  }
  record.nodes.push_back(std::move(node));
  return record.nodes.back();
}

Result<LocalNode> add_slot_node(LocalRecord& record, const std::string& name,
                                std::optional<int> slots) {
  const auto found = std::ranges::find(record.nodes, name, &LocalNode::name);
  if (found == record.nodes.end()) return node_of(record, name, slots.value_or(1));
  if (slots && *slots != found->slots)
    return Error(Code::kInvalid,
                 fmt::format("node {} is there already, with {}, and keeps what it has\n  What to "
                             "do: leave --slots away, or add a node of another name",
                             name, counted(found->slots, "GPU")));
  return *found;
}

Status check_node_name(const std::string& name) {
  if (name.empty() || is_dns_label(name)) return ok();
  return Error(Code::kInvalid, fmt::format("node \"{}\": {}", name, kDnsLabelRule));
}

Result<LocalNode> add_gpu_node(LocalRecord& record, const std::string& name,
                               const std::vector<int>& gpus) {
  const std::vector<int> unused = unused_gpus(record, gpus);
  if (unused.empty()) return Error(Code::kInvalid, "nodes of this cluster have these GPUs already");
  if (std::ranges::find(record.nodes, name, &LocalNode::name) != record.nodes.end())
    return Error(Code::kInvalid, "node " + name + " is there already, and keeps what it has");
  LocalNode& node = node_of(record, name, static_cast<int>(unused.size()));
  node.gpus = unused;
  return node;
}

Status add_nodes(LocalRecord& record, int nodes, int slots, const std::vector<int>& gpus) {
  const std::vector<int> unused = unused_gpus(record, gpus);
  const auto had = record.nodes.size();
  const std::size_t more = std::max(nodes, static_cast<int>(had)) - had;
  if (more == 0 && !unused.empty())
    return Error(Code::kInvalid,
                 fmt::format("the nodes of this cluster are there already, without GPU {0}\n  What "
                             "to do: `rubatoctl node add --gpus {0}`, when the cluster is up",
                             fmt::join(unused, ",")));
  if (!gpus.empty() && unused.size() < more)
    return Error(
        Code::kInvalid,
        fmt::format("{} of this machine cannot be dealt to {}\n  What to do: fewer --nodes",
                    counted(unused.size(), "unused GPU"), counted(more, "new node")));
  for (std::size_t i = 0; i < more; ++i) {
    LocalNode& node = node_of(record, "", slots);
    const auto first = unused.begin() + static_cast<std::ptrdiff_t>(i * unused.size() / more);
    const auto end = unused.begin() + static_cast<std::ptrdiff_t>((i + 1) * unused.size() / more);
    node.gpus.assign(first, end);
    if (!node.gpus.empty()) node.slots = static_cast<int>(node.gpus.size());
  }
  return ok();
}

}  // namespace rubato::ctl
