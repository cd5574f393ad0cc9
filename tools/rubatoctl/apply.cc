#include "common/words.h"
#include "tools/rubatoctl/manifests.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/resources.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kGonePoll = 200ms;

Result<std::string> read_manifest(const std::string& file) {
  std::ostringstream text;
  if (file == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(file, std::ios::binary);
  if (!in)
    return Error(Code::kNotFound, "cannot read " + file +
                                      "\n  What to do: check the path; `-f -` reads standard "
                                      "input");
  text << in.rdbuf();
  return text.str();
}

// "created", "configured" or "unchanged".
Result<std::string> apply_one(Session& session, const kube::ResourceType& type,
                              const Value& manifest, bool dry_run) {
  std::string ns;
  if (type.namespaced) {
    TRY(ns, namespace_for(manifest, session.asked_ns(), session.ns()));
  }
  const kube::Key key{ns, kube::name_of(manifest)};
  kube::WriteOptions options;
  options.field_manager = "rubatoctl";
  options.dry_run = dry_run;
  options.field_validation = "Strict";
  Value wanted = with_last_applied(manifest);
  if (type.namespaced) wanted.at("metadata").set("namespace", ns);
  const auto live = session.client().get(type, key);
  if (!live.ok()) {
    if (live.error().code() != Code::kNotFound) return live.error();
    const auto created = session.client().create(type, ns, wanted, options);
    if (!created.ok()) return created.error();
    return std::string("created");
  }
  const Value last = json::parse((*live)["metadata"]["annotations"][kLastApplied].string_or("{}"))
                         .value_or(Value::object());
  const Value patch = three_way_patch(last, wanted, *live);
  if (patch.is_null()) return std::string("unchanged");
  const auto patched = session.client().patch(type, key, kube::PatchType::kMerge, patch, options);
  if (!patched.ok()) return patched.error();
  const bool same =
      kube::resource_version_of(*patched) == kube::resource_version_of(*live) && !dry_run;
  return std::string(same ? "unchanged" : "configured");
}

}  // namespace

Status apply_objects(Session& session, const std::vector<Value>& manifests, bool dry_run) {
  std::size_t refused = 0;
  for (const Value& manifest : manifests) {
    const std::string name = kube::name_of(manifest);
    const auto type = resource_of_kind(session.rest(), manifest["apiVersion"].string_or(""),
                                       manifest["kind"].string_or(""));
    const auto done = type.ok() ? apply_one(session, *type, manifest, dry_run)
                                : Result<std::string>(type.error());
    if (done.ok()) {
      fmt::print("{} {}{}\n", display_name(*type, name), *done, dry_run ? " (dry run)" : "");
      continue;
    }
    ++refused;
    fmt::print(stderr, "{} \"{}\" was refused: {}\n", manifest["kind"].string_or(""), name,
               readable_refusal(advised(done.error()).what()));
  }
  if (refused == 0) return ok();
  return Error(Code::kInvalid,
               fmt::format("{} {} refused", counted_of(refused, manifests.size(), "object"),
                           agreeing(refused, "was", "were")));
}

Status apply(Session& session, const std::string& file, bool dry_run) {
  TRY(const std::string text, read_manifest(file));
  const auto manifests = read_manifests(text);
  if (!manifests.ok()) return manifests.error().in(file);
  const Status applied = apply_objects(session, *manifests, dry_run);
  return applied.ok() ? ok() : Status(applied.error().in(file));
}

// ---- Delete
// --------------------------------------------------------------------------------------

namespace {

Result<std::vector<ObjectRef>> targets_of(Session& session, const DeleteChoice& choice) {
  std::vector<ObjectRef> targets;
  if (!choice.file.empty()) {
    TRY(const std::string text, read_manifest(choice.file));
    TRY(const std::vector<Value> manifests, read_manifests(text));
    for (const Value& manifest : manifests) {
      TRY(const kube::ResourceType type,
          resource_of_kind(session.rest(), manifest["apiVersion"].string_or(""),
                           manifest["kind"].string_or("")));
      std::string ns;
      if (type.namespaced) {
        TRY(ns, namespace_for(manifest, session.asked_ns(), session.ns()));
      }
      targets.push_back({type, {ns, kube::name_of(manifest)}, ""});
    }
    return targets;
  }
  std::string resource = choice.resource;
  std::vector<std::string> names = choice.names;
  if (const auto slash = resource.find('/'); slash != std::string::npos) {
    names.insert(names.begin(), resource.substr(slash + 1));
    resource.resize(slash);
  }
  if (names.empty())
    return Error(Code::kInvalid,
                 "name what to delete: `rubatoctl delete tj NAME`, or `rubatoctl delete -f FILE`");
  TRY(const kube::ResourceType type, resource_named(session.rest(), resource));
  for (const std::string& name : names)
    targets.push_back({type, {type.namespaced ? session.ns() : "", name}, ""});
  return targets;
}

}  // namespace

Status wait_until_gone(kube::Client& client, Executor& executor, const ObjectRef& object,
                       MonoTime deadline, const std::string& advice) {
  while (true) {
    const auto live = client.get(object.type, object.key);
    if (live.ok()) {
      if (!object.uid.empty() && kube::uid_of(*live) != object.uid) return ok();
    } else {
      if (live.error().code() == Code::kNotFound) return ok();
      if (retry_class(live.error().code()) == Retry::kNever) return advised(live.error());
    }
    if (executor.now() >= deadline) {
      if (!live.ok()) return advised(live.error());
      return Error(Code::kTimeout, display_name(object.type, object.key.name) +
                                       " is still there\n  What to do: " + advice);
    }
    executor.sleep_for(kGonePoll);
  }
}

Status remove(Session& session, const DeleteChoice& choice) {
  TRY(std::vector<ObjectRef> targets, targets_of(session, choice));
  for (ObjectRef& target : targets) {
    if (choice.wait) {
      const auto live = session.client().get(target.type, target.key);
      if (live.ok()) target.uid = kube::uid_of(*live);
    }
    const Status removed = session.client().remove(target.type, target.key);
    if (!removed.ok()) {
      if (!choice.file.empty() && removed.error().code() == Code::kNotFound) continue;
      return advised(removed.error());
    }
    fmt::print("{} deleted\n", display_name(target.type, target.key.name));
  }
  const MonoTime deadline = session.executor().now() + choice.timeout;
  for (const ObjectRef& target : targets) {
    if (!choice.wait) break;
    TRY_OK(wait_until_gone(session.client(), session.executor(), target, deadline,
                           "its finalizers wait for something: see `rubatoctl describe`; "
                           "--wait=false does not wait"));
  }
  return ok();
}

}  // namespace rubato::ctl
