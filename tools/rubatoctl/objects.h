// Commands on objects of any cluster: get, apply, describe, delete, and the small edits. Each
// prints to standard output and returns an error that says what to do.
#pragma once

#include "tools/rubatoctl/session.h"
#include "tools/rubatoctl/view/text_table.h"

#include <functional>
#include <string>
#include <vector>

namespace rubato::ctl {

struct GetOptions {
  std::string resource = "tj";  // "tj", "pods", "tj/x" …
  std::vector<std::string> names;
  std::string output;  // "", wide, yaml, json, name
  std::string selector;
  bool watch = false;
  bool all_namespaces = false;
};
// With `watch` it goes on until the server ends it for good.
Status get(Session& session, const GetOptions& options);
// The name of "tj/x" is among the names. kInvalid: options that cannot be had together. Pure.
Result<GetOptions> checked_options(GetOptions options);
// Reads a whole Table by pages, each of which is given to `take`; its resourceVersion. `fetch`
// gives the body of a path.
using Fetch = std::function<Result<std::string>(const std::string& path)>;
Result<std::string> read_table(const Fetch& fetch, const std::string& path,
                               const kube::ListOptions& options,
                               const std::function<void(const json::Value&)>& take);

// Creates or changes each object of the file ("-": standard input); goes on after a refusal and
// fails at the end.
Status apply(Session& session, const std::string& file, bool dry_run);
Status apply_objects(Session& session, const std::vector<json::Value>& manifests, bool dry_run);

// The object of this uid; of any, where it is empty.
struct ObjectRef {
  kube::ResourceType type;
  kube::Key key;
  std::string uid;
};
// Polls until it is not found or another has its name. At the deadline: kTimeout with `advice`, or
// the error of the last poll. An error that no retry can change is returned at once.
Status wait_until_gone(kube::Client& client, Executor& executor, const ObjectRef& object,
                       MonoTime deadline, const std::string& advice);

struct DeleteChoice {
  std::string resource;
  std::vector<std::string> names;
  std::string file;  // instead: the objects of a manifest
  bool wait = true;
  std::chrono::seconds timeout{120};
};
// With the name of "tj/NAME" among its names. kInvalid: it names nothing, or an empty name, or both
// objects and a file.
Result<DeleteChoice> checked_choice(DeleteChoice choice);
// Goes on after a refusal, waits for those that were deleted, and fails at the end. What is not
// there is an error unless it was named by a file.
Status remove_objects(kube::Client& client, Executor& executor, std::vector<ObjectRef> targets,
                      const DeleteChoice& choice);
Status remove(Session& session, const DeleteChoice& choice);

struct NamedObject {
  std::string resource;
  std::string name;
};
// Of "tj" and a name, or of "tj/NAME" alone. kInvalid: it has no name, or two. Pure.
Result<NamedObject> named_object(const std::string& resource, const std::string& name);
Status describe(Session& session, const NamedObject& object);
// Those of `events` (events.k8s.io/v1) that are about the object, the oldest first. Pure.
TextTable event_table(std::vector<json::Value> events, const json::Value& object, WallTime now);

// The job that is meant by its name, or by "tj/NAME", as kubectl takes it. kInvalid: it is of
// another kind, or has no name. Pure.
Result<std::string> job_named(const std::string& text);
// A merge patch of a job's spec, in the session's namespace.
Status patch_job(Session& session, const std::string& job, const json::Value& spec);
Status set_suspended(Session& session, const std::string& job, bool suspended);
Status scale(Session& session, const std::string& job, int max, int min);  // -1: leave it
// The condition of a job that `wait --for` means: its type in any case, alone or as kubectl spells
// it (condition=Complete, condition=complete=true). kInvalid names those that there are.
Result<std::string> condition_named(std::string_view text);
// Waits until a condition of the job is True, also while the server is away; fails at once when the
// job ended and the condition is another.
Status wait_for(kube::Client& client, Executor& executor, const kube::Key& job,
                const std::string& condition, std::chrono::seconds timeout);

Status cordon(kube::Client& client, const std::string& node, bool unschedulable);
// Cordons, then evicts the pods, and waits until they are gone. Those of DaemonSets, static ones
// and those that have ended stay, and are named.
Status drain(kube::Client& client, Executor& executor, const std::string& node,
             std::chrono::seconds timeout);

}  // namespace rubato::ctl
