// cluster.json
#include "tools/rubatoctl/local/cluster.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::ctl {

json::Value encode(const LocalRecord& record) {
  json::Value ports = json::Value::array();
  for (const int port : record.operator_ports) ports.push_back(port);
  json::Value nodes = json::Value::array();
  for (const LocalNode& node : record.nodes)
    nodes.push_back(
        json::Value::object({{"name", node.name}, {"number", node.number}, {"slots", node.slots}}));
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

}  // namespace rubato::ctl
