// Commands on objects of any cluster: get, apply, describe, delete, and the small edits. Each
// prints to standard output and returns an error that says what to do.
#pragma once

#include "tools/rubatoctl/session.h"

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
// With `watch` it goes on until `stop` says so or the server ends it for good.
Status get(Session& session, const GetOptions& options);

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
Status remove(Session& session, const DeleteChoice& choice);

Status describe(Session& session, const std::string& resource, const std::string& name);

// A merge patch of a job's spec, in the session's namespace.
Status patch_job(Session& session, const std::string& job, const json::Value& spec);
Status set_suspended(Session& session, const std::string& job, bool suspended);
Status scale(Session& session, const std::string& job, int max, int min);  // -1: leave it
// The condition of a job that `wait --for` means: its type in any case, alone or as kubectl spells
// it (condition=Complete, condition=complete=true). kInvalid names those that there are.
Result<std::string> condition_named(std::string_view text);
// Waits until a condition of the job is True; fails at once when the job failed.
Status wait_for(Session& session, const std::string& job, const std::string& condition,
                std::chrono::seconds timeout);

Status cordon(Session& session, const std::string& node, bool unschedulable);
// Cordons, then evicts every pod, and waits until they are gone.
Status drain(Session& session, const std::string& node, std::chrono::seconds timeout);

}  // namespace rubato::ctl
