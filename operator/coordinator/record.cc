#include "operator/coordinator/record.h"

#include "operator/api/packed_members.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {

json::Value to_json(const std::vector<Member>& members) {
  json::Value list = json::Value::array();
  for (const Member& m : members) {
    list.push_back(json::Value::object({{"pod", m.pod},
                                        {"podUID", m.key.pod_uid},
                                        {"node", m.node},
                                        {"slot", m.key.slot},
                                        {"incarnation", m.incarnation},
                                        {"gpuType", m.gpu_type}}));
  }
  return list;
}

std::vector<Member> members_from(const json::Value& list) {
  std::vector<Member> members;
  for (const json::Value& item : list.items()) {
    Member m;
    m.key.pod_uid = item["podUID"].string_or("");
    m.key.slot = static_cast<std::uint32_t>(item["slot"].int_or(0));
    m.incarnation = static_cast<std::uint64_t>(item["incarnation"].int_or(0));
    m.pod = item["pod"].string_or("");
    m.node = item["node"].string_or("");
    m.gpu_type = item["gpuType"].string_or("");
    members.push_back(std::move(m));
  }
  return members;
}

std::vector<api::MembershipMember> to_api(const std::vector<Member>& members) {
  std::vector<api::MembershipMember> out;
  out.reserve(members.size());
  for (const Member& m : members)
    out.push_back({m.pod, m.key.pod_uid, m.node, static_cast<std::int32_t>(m.key.slot),
                   static_cast<std::int64_t>(m.incarnation), m.gpu_type});
  return out;
}

std::vector<Member> from_api(const std::vector<api::MembershipMember>& members) {
  std::vector<Member> out;
  out.reserve(members.size());
  for (const api::MembershipMember& m : members)
    out.push_back({{m.pod_uid, static_cast<std::uint32_t>(m.slot)},
                   static_cast<std::uint64_t>(m.incarnation),
                   m.pod,
                   m.node,
                   m.gpu_type});
  return out;
}

}  // namespace

std::string to_string(const WorkerKey& key) { return key.pod_uid + "/" + std::to_string(key.slot); }

json::Value to_json(const Record& record) {
  const bool packed =
      std::max(record.members.size(), record.previous.size()) > api::kListedMembersMost;
  json::Value out =
      json::Value::object({{"generation", record.generation},
                           {"leader", record.leader},
                           {"phase", record.phase},
                           {"members", packed ? json::Value::array() : to_json(record.members)},
                           {"size", record.members.size()},
                           {"seq", record.seq},
                           {"step", record.step}});
  if (packed)
    out.set("packed", api::pack({to_api(record.members), to_api(record.previous)}));
  else if (!record.previous.empty())
    out.set("previous", to_json(record.previous));
  if (!record.fingerprint.empty()) out.set("fingerprint", record.fingerprint);
  if (record.stop_steps != 0) out.set("stopSteps", record.stop_steps);
  if (record.ended_at != 0) out.set("endedAt", record.ended_at);
  if (record.rescales != 0) out.set("rescales", record.rescales);
  if (record.recomputed_steps != 0) out.set("recomputedSteps", record.recomputed_steps);
  if (record.failures != 0) out.set("failures", record.failures);
  if (!record.crashes.empty()) {
    json::Value crashes = json::Value::object();
    for (const auto& [pod_uid, count] : record.crashes) crashes.set(pod_uid, count);
    out.set("crashes", std::move(crashes));
  }
  return out;
}

Result<Record> record_from(const json::Value& membership) {
  const auto number = [&](const char* name) {
    return static_cast<std::uint64_t>(membership[name].int_or(0));
  };
  Record record;
  record.generation = number("generation");
  record.leader = number("leader");
  record.phase = membership["phase"].string_or("");
  if (const std::string packed = membership["packed"].string_or(""); !packed.empty()) {
    TRY(const api::Members members, api::unpack(packed));
    record.members = from_api(members.members);
    record.previous = from_api(members.previous);
  } else {
    record.members = members_from(membership["members"]);
    record.previous = members_from(membership["previous"]);
  }
  record.seq = number("seq");
  record.step = number("step");
  record.fingerprint = membership["fingerprint"].string_or("");
  record.stop_steps = number("stopSteps");
  record.ended_at = number("endedAt");
  record.rescales = number("rescales");
  record.recomputed_steps = number("recomputedSteps");
  record.failures = number("failures");
  for (const auto& [pod_uid, count] : membership["crashes"].members())
    record.crashes[pod_uid] = static_cast<std::uint64_t>(count.int_or(0));
  return record;
}

}  // namespace rubato::coordinator
