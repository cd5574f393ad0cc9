#include "operator/control/status_diff.h"

#include "common/log.h"
#include "operator/api/codec.h"
#include "operator/api/kinds.h"

namespace rubato::control {

using json::Value;

namespace {

// "progress.step", "conditions[].reason".
std::string path_of_member(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void erase_dropped(Value& value, const std::string& path,
                   const std::map<std::string, MonoTime>& dropped) {
  if (value.is_array())
    for (Value& item : value.mutable_items()) erase_dropped(item, path + "[]", dropped);
  if (!value.is_object()) return;
  std::erase_if(value.mutable_members(), [&](const json::Member& member) {
    return dropped.contains(path_of_member(path, member.first));
  });
  for (auto& [name, member] : value.mutable_members())
    erase_dropped(member, path_of_member(path, name), dropped);
}

void find_dropped(const Value& written, const Value& kept, const std::string& path,
                  std::set<std::string>& dropped) {
  if (kept.is_null() && !written.is_null()) {
    dropped.insert(path);
    return;
  }
  for (std::size_t i = 0; i < written.items().size() && i < kept.items().size(); ++i)
    find_dropped(written[i], kept[i], path + "[]", dropped);
  for (const auto& [name, value] : written.members())
    find_dropped(value, kept[name], path_of_member(path, name), dropped);
}

}  // namespace

Value StatusDiff::patch(const kube::ResourceType& type, const Value& seen, const Value& wanted,
                        MonoTime now) {
  const api::ObjectSchema& schema = *api::find_kind(type.kind)->status;
  Value before = seen.is_object() ? seen : Value::object();
  Value after = wanted;
  std::erase_if(before.mutable_members(),
                [&](const json::Member& member) { return schema.find(member.first) == nullptr; });
  std::lock_guard lock(mutex_);
  auto& dropped = dropped_[type.kind];
  std::erase_if(dropped, [&](const auto& entry) { return now - entry.second >= kDroppedFor; });
  if (!dropped.empty()) {
    erase_dropped(before, "", dropped);
    erase_dropped(after, "", dropped);
  }
  return api::diff(before, after);
}

void StatusDiff::note_written(const kube::ResourceType& type, const Value& patch,
                              const Value& wanted, const Value& kept, MonoTime now) {
  std::set<std::string> found;
  for (const auto& [name, value] : patch.members())
    find_dropped(wanted[name], kept[name], name, found);
  std::lock_guard lock(mutex_);
  for (const std::string& path : found) {
    dropped_[type.kind][path] = now;
    if (!told_.insert(type.kind + " " + path).second) continue;
    LOG_WARNING(
        "control",
        "the CRD of {} is older than this operator: status.{} is dropped by the API server; "
        "upgrade the CRDs (`rubatoctl doctor` of this build says how)",
        type.kind, path);
  }
}

void StatusDiff::note_unwritten(const kube::ResourceType& type, const std::string& name,
                                MonoTime now) {
  std::lock_guard lock(mutex_);
  std::erase_if(unwritten_, [&](const auto& entry) { return now - entry.second >= kUnwrittenFor; });
  unwritten_[{type.kind, name}] = now;
}

bool StatusDiff::rests(const kube::ResourceType& type, const std::string& name, MonoTime now) {
  std::lock_guard lock(mutex_);
  const auto found = unwritten_.find({type.kind, name});
  return found != unwritten_.end() && now - found->second < kUnwrittenFor;
}

}  // namespace rubato::control
