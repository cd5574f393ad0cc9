#include "apiserver/memory/event_form.h"

#include <utility>

namespace rubato::kube::event_form {
namespace {

using json::Value;

constexpr std::pair<const char*, const char*> kNames[] = {
    // core/v1, events.k8s.io/v1
    {"involvedObject", "regarding"},
    {"message", "note"},
    {"source", "deprecatedSource"},
    {"firstTimestamp", "deprecatedFirstTimestamp"},
    {"lastTimestamp", "deprecatedLastTimestamp"},
    {"count", "deprecatedCount"},
    {"reportingComponent", "reportingController"},
};

Value renamed(const Value& event, bool to_core, const char* api_version) {
  Value out = Value::object();
  for (const json::Member& member : event.members()) {
    const char* name = nullptr;
    for (const auto& [core, other] : kNames)
      if (member.first == (to_core ? other : core)) name = to_core ? core : other;
    out.set(name != nullptr ? std::string_view(name) : std::string_view(member.first),
            member.second);
  }
  out.set("apiVersion", api_version);
  return out;
}

}  // namespace

// An event of events.k8s.io has eventTime alone. Kubernetes answers null for the others, and
// kubectl cannot sort by what is not there.
Value to_core(const Value& event) {
  Value core = renamed(event, true, "v1");
  for (const char* time : {"firstTimestamp", "lastTimestamp"})
    if (!core.has(time)) core.set(time, nullptr);
  return core;
}
Value from_core(const Value& event) { return renamed(event, false, "events.k8s.io/v1"); }

}  // namespace rubato::kube::event_form
