#include "common/words.h"
#include "operator/api/codec.h"
#include "operator/api/crd.h"
#include "operator/api/packed_members.h"
#include "operator/api/resources.h"
#include "operator/api/training_job.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/resources.h"
#include "tools/rubatoctl/view/plot.h"
#include "tools/rubatoctl/view/text_table.h"

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

std::string age_text(const std::string& time, WallTime now) {
  const auto parsed = parse_rfc3339(time);
  return parsed.ok() ? human_duration(now - *parsed) : "";
}
std::string age_text(const std::optional<WallTime>& time, WallTime now) {
  return time ? human_duration(now - *time) : "";
}

void line(const char* name, const std::string& text) {
  if (!text.empty()) fmt::print("{:<14}{}\n", std::string(name) + ":", text);
}

void print_indented(const std::string& title, const TextTable& table) {
  if (table.rows.empty()) return;
  fmt::print("{}:\n", title);
  const Widths widths = widths_of(table);
  fmt::print("  {}\n", row_text(table.head, widths));
  for (const auto& row : table.rows) fmt::print("  {}\n", row_text(row, widths));
}

void print_gpu_time(const api::TrainingJobStatus& status) {
  if (!status.useful_gpu_seconds || !status.lost_gpu_seconds) return;
  const api::LostGpuSeconds& lost = *status.lost_gpu_seconds;
  const double straggling = lost.straggling.value_or(0);
  const double all = *status.useful_gpu_seconds + lost.queue + lost.rescale + lost.failure +
                     lost.checkpoint + straggling;
  if (all <= 0) return;
  line("Goodput",
       fmt::format("{:.2f}: {:.0f} of {:.0f} GPU seconds trained; lost to queue {:.0f}, "
                   "rescale {:.0f}, failure {:.0f}, checkpoint {:.0f}, straggling {:.0f}",
                   *status.useful_gpu_seconds / all, *status.useful_gpu_seconds, all, lost.queue,
                   lost.rescale, lost.failure, lost.checkpoint, straggling));
}

void print_summary(const api::TrainingJob& job, const Value& object, WallTime now) {
  const auto& status = job.status;
  line("Name", job.meta.ns + "/" + job.meta.name);
  line("State", status.state + (status.reason.empty() ? "" : " (" + status.reason + ")"));
  line("Queue", object["spec"]["queue"].string_or(""));
  line("GPUs", status.display ? status.display->gpus + "  " + status.display->type : "");
  if (status.progress) {
    const auto& p = *status.progress;
    line("Progress", fmt::format("step {} of {} ({}%), {}, checkpoint at step {}", p.step, p.steps,
                                 p.percentage, counted(p.tokens, "token"), p.checkpoint_step));
    if (p.estimated_remaining_seconds)
      line("Remaining", short_time(static_cast<double>(*p.estimated_remaining_seconds)));
    if (p.loss)
      line("Loss",
           fmt::format(
               "{:.4f}{}", *p.loss,
               p.validation_loss ? fmt::format("  validation {:.4f}", *p.validation_loss) : ""));
    if (p.recomputed_steps > 0) line("Recomputed", counted(p.recomputed_steps, "step"));
  }
  if (status.performance) {
    line(
        "Speed",
        short_number(status.performance->tokens_per_second) + " tokens/s" +
            (status.performance->mfu ? fmt::format(", MFU {:.2f}", *status.performance->mfu) : ""));
    if (const auto noise = status.performance->gradient_noise_scale)
      line("Noise scale", short_number(*noise) + " tokens: larger batches save few steps");
  }
  print_gpu_time(status);
  if (status.rescales && status.rescales->last) {
    const auto& last = *status.rescales->last;
    line("Rescales", fmt::format("{}; last: {} to {}, {}, stall {:.2f} s, {} ago",
                                 status.rescales->count, last.from, counted(last.to, "GPU"),
                                 last.reason, last.stall_seconds, age_text(last.time, now)));
  }
  line("Age", age_text(object["metadata"]["creationTimestamp"].string_or(""), now));
}

void print_tables(const api::TrainingJob& job, WallTime now) {
  const auto& status = job.status;
  TextTable conditions{{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}, {}};
  for (const auto& condition : status.conditions)
    conditions.rows.push_back({condition.type,
                               condition.status == api::ConditionStatus::kTrue    ? "True"
                               : condition.status == api::ConditionStatus::kFalse ? "False"
                                                                                  : "Unknown",
                               condition.reason, age_text(condition.last_transition_time, now),
                               condition.message});
  print_indented("Conditions", conditions);
  TextTable avoided{{"NODE", "REASON", "UNTIL", "MESSAGE"}, {}};
  std::string last;
  for (const api::AvoidedNode& node : status.avoided_nodes) {
    avoided.rows.push_back({node.node, node.reason, node.until ? to_rfc3339(*node.until) : "",
                            node.message == last ? "the same" : node.message});
    last = node.message;
  }
  print_indented("Avoided nodes", avoided);
  if (status.allocation) {
    const auto& allocation = *status.allocation;
    TextTable pods{{"POD", "NODE", "TYPE", "GPUS"}, {}};
    for (const auto& pod : allocation.pods)
      pods.rows.push_back({pod.name, pod.node, pod.gpu_type, std::to_string(pod.gpus)});
    print_indented(fmt::format("Allocation (epoch {}, {}{})", allocation.epoch,
                               counted(allocation.gpus, "GPU"),
                               allocation.reason.empty() ? "" : "; " + allocation.reason),
                   pods);
  }
  if (status.membership) {
    const auto& membership = *status.membership;
    std::vector<api::MembershipMember> workers = membership.members;
    if (!membership.packed.empty()) {
      const auto packed = api::unpack(membership.packed);
      if (!packed.ok()) return line("Membership", packed.error().what());
      workers = packed->members;
    }
    TextTable members{{"POD", "SLOT", "NODE", "INCARNATION"}, {}};
    for (const auto& member : workers)
      members.rows.push_back({member.pod, std::to_string(member.slot), member.node,
                              std::to_string(member.incarnation)});
    print_indented(fmt::format("Membership (generation {}, {}, step {})", membership.generation,
                               membership.phase, membership.step),
                   members);
  }
}

// When it was last seen. Events of core/v1, as kubelets write them, have the deprecated members
// alone.
std::optional<WallTime> last_seen(const Value& event) {
  for (const Value* time : {&event["series"]["lastObservedTime"], &event["deprecatedLastTimestamp"],
                            &event["eventTime"], &event["deprecatedFirstTimestamp"],
                            &event["metadata"]["creationTimestamp"]}) {
    const auto parsed = parse_rfc3339(time->string_view_or(""));
    if (parsed.ok()) return *parsed;
  }
  return std::nullopt;
}

bool is_about(const Value& event, const Value& object) {
  const Value& regarding = event["regarding"];
  const std::string_view uid = regarding["uid"].string_view_or("");
  if (uid == kube::uid_of(object)) return true;
  // A kubelet knows its node by the name alone.
  return object["kind"].string_view_or("") == "Node" &&
         regarding["kind"].string_view_or("") == "Node" && uid == kube::name_of(object);
}

}  // namespace

TextTable event_table(std::vector<Value> events, const Value& object, WallTime now) {
  std::erase_if(events, [&](const Value& event) { return !is_about(event, object); });
  std::ranges::stable_sort(events, {}, last_seen);
  TextTable table{{"AGE", "TYPE", "REASON", "NOTE"}, {}};
  for (const Value& event : events) {
    const std::int64_t count = event["series"]["count"].int_or(event["deprecatedCount"].int_or(1));
    table.rows.push_back(
        {age_text(last_seen(event), now), event["type"].string_or(""),
         event["reason"].string_or(""),
         event["note"].string_or("") + (count > 1 ? fmt::format(" (x{})", count) : "")});
  }
  return table;
}

Result<NamedObject> named_object(const std::string& resource, const std::string& name) {
  const auto slash = resource.find('/');
  NamedObject object{resource.substr(0, slash), name};
  if (slash != std::string::npos && name.empty()) object.name = resource.substr(slash + 1);
  if (object.name.empty() || (slash != std::string::npos && !name.empty()))
    return Error(Code::kInvalid, "name one object: `rubatoctl describe tj NAME`, or `tj/NAME`");
  return object;
}

Status describe(Session& session, const NamedObject& asked) {
  TRY(const kube::ResourceType type, resource_named(session.rest(), asked.resource));
  const std::string ns = type.namespaced ? session.ns() : "";
  const auto object = session.client().get(type, {ns, asked.name});
  if (!object.ok()) return advised(object.error());
  if (type == api::kTrainingJob) {
    TRY(const api::TrainingJob job, api::decode_training_job(*object));
    print_summary(job, *object, session.wall());
    print_tables(job, session.wall());
  } else {
    Value shown = *object;
    shown.at("metadata").erase("managedFields");
    std::fputs(api::to_yaml(shown).c_str(), stdout);
  }
  TRY(std::vector<Value> events, session.list(kube::types::kEvent, ns.empty() ? "default" : ns));
  print_indented("Events", event_table(std::move(events), *object, session.wall()));
  return ok();
}

}  // namespace rubato::ctl
