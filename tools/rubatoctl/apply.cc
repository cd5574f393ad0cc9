#include "common/files.h"
#include "common/words.h"
#include "common/yaml.h"
#include "tools/rubatoctl/manifests.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/resources.h"

#include <cstdio>
#include <optional>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kGonePoll = 200ms;

Result<std::string> read_manifest(const std::string& file) {
  auto text = read_input(file, yaml::kMaxBytes);
  if (text.ok()) return text;
  return Error(text.error().code(), text.error().what() +
                                        "\n  What to do: name one file (folders are not read); "
                                        "`-f -` reads standard input");
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

Result<DeleteChoice> checked_choice(DeleteChoice choice) {
  if (!choice.file.empty()) {
    if (choice.resource.empty() && choice.names.empty()) return choice;
    return Error(Code::kInvalid,
                 "name objects, or a file of them by -f, not both: nothing was deleted");
  }
  if (const auto slash = choice.resource.find('/'); slash != std::string::npos) {
    choice.names.insert(choice.names.begin(), choice.resource.substr(slash + 1));
    choice.resource.resize(slash);
  }
  if (choice.names.empty())
    return Error(Code::kInvalid,
                 "name what to delete: `rubatoctl delete tj NAME`, or `rubatoctl delete -f FILE`");
  for (const std::string& name : choice.names) {
    if (const Status named = kube::check_key({"", name}); !named.ok())
      return Error(Code::kInvalid, named.error().what() +
                                       ": nothing was deleted\n  What to do: see whether a "
                                       "variable of your shell is empty");
  }
  return choice;
}

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
  TRY(const kube::ResourceType type, resource_named(session.rest(), choice.resource));
  for (const std::string& name : choice.names)
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

Status remove_objects(kube::Client& client, Executor& executor, std::vector<ObjectRef> targets,
                      const DeleteChoice& choice) {
  std::size_t failures = 0;
  std::optional<Error> last;
  const auto note = [&](const ObjectRef& target, const Error& error) {
    ++failures;
    last = error;
    if (targets.size() > 1)
      fmt::print(stderr, "{}: {}\n", display_name(target.type, target.key.name), error.what());
  };
  std::vector<ObjectRef> leaving;
  for (ObjectRef& target : targets) {
    if (choice.wait) {
      const auto live = client.get(target.type, target.key);
      if (live.ok()) target.uid = kube::uid_of(*live);
    }
    const Status removed = client.remove(target.type, target.key);
    if (removed.ok()) {
      fmt::print("{} deleted\n", display_name(target.type, target.key.name));
      leaving.push_back(target);
    } else if (choice.file.empty() || removed.error().code() != Code::kNotFound) {
      note(target, advised(removed.error()));
    }
  }
  const MonoTime deadline = executor.now() + choice.timeout;
  for (const ObjectRef& target : leaving) {
    if (!choice.wait) break;
    const Status gone = wait_until_gone(client, executor, target, deadline,
                                        "its finalizers wait for something: see `rubatoctl "
                                        "describe`; --wait=false does not wait");
    if (!gone.ok()) note(target, gone.error());
  }
  if (failures == 0) return ok();
  if (targets.size() == 1) return *last;
  return Error(Code::kInvalid,
               fmt::format("{} {} not deleted", counted_of(failures, targets.size(), "object"),
                           agreeing(failures, "was", "were")));
}

Status remove(Session& session, const DeleteChoice& given) {
  TRY(const DeleteChoice choice, checked_choice(given));
  TRY(std::vector<ObjectRef> targets, targets_of(session, choice));
  return remove_objects(session.client(), session.executor(), std::move(targets), choice);
}

}  // namespace rubato::ctl
