// JobPass: one reconcile of one job. Reads the caches once, then acts step by step; each step can
// be repeated. Lives on one controller worker for the length of a reconcile.
#pragma once

#include "operator/control/avoided_nodes.h"
#include "operator/control/job_controller.h"
#include "operator/control/job_intent.h"
#include "operator/control/job_status.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::control {

// How soon to look again while the cache is known to be older than the server.
constexpr auto kWhileBehind = std::chrono::seconds(1);

class JobPass {
 public:
  JobPass(JobControllerDependencies& dependencies, std::shared_ptr<const JobObject> object,
          std::int64_t leader);
  kube::Outcome run();

 private:
  // Steps, in order.
  Status claim(bool& written);
  Status check_template();
  bool is_trial_due();
  std::optional<api::JobPriority> priority_of_spec() const;
  void note_untried(const Error& error);
  Status ensure_pods();
  void forbid_pods(const std::string& what, const Error& error);
  bool is_to_leave(const api::AllocatedPod& allocated, const kube::Pod* pod) const;
  Status ensure_credentials();
  Status check_gang();
  void avoid_nodes_of_late_pods();
  void avoid_for_late_pod(const std::string& key, const api::AllocatedPod& allocated,
                          const kube::Pod& pod);
  void give_up_useless();
  void give_up_unstarted(const std::map<std::string, const api::AllocatedPod*>& waiting);
  void give_up_unmade(const std::string& key, const std::string& what);
  std::int64_t made_gpus() const;  // of the allocation
  void give_up(const std::string& key, const UselessPod& useless, const std::string& what);
  void avoid(const std::string& key, const UselessPod& useless, const std::string& what);
  Status place(const api::AllocatedPod& allocated, const kube::Pod* pod);  // null: not there yet
  Status create_pod(const api::AllocatedPod& pod);
  bool is_refused_for_good(const Error& error) const;
  void refuse_template(const Error& error);
  std::optional<Error> refused_lately(const std::string& request);
  void pause_after(const std::string& request, const Error& error);
  void warn_at_times(const char* reason, const char* action, const std::string& note,
                     const Error& cause);
  Status tell_refused(const std::string& what, const Error& error);
  Status note_refusal(const std::string& what, const Error& error);
  bool waits_after_refusal(const std::string& what);
  // job_pass_claims.cc: before a pod is bound.
  Status ready_claims(const kube::Pod& pod, const std::string& node, bool& ready);
  Status select_node(const kube::Claim& claim, const kube::Pod& pod, const kube::Node& node);
  Status bind_volume(const kube::Claim& claim, const kube::Pod& pod, const kube::Node& node);
  Status annotate_claim(const kube::Claim& claim, const std::string& node);
  void give_up_node(const std::string& node, const kube::Pod& pod, const std::string& why);
  Status adopt_pod(const api::AllocatedPod& pod);
  Status bind_pod(const kube::Pod& pod, const std::string& node);
  void instruct_coordinator();
  void note_losses();
  Status remove_left_pods();
  Status remove_pod(const kube::Pod& pod);
  Status finish_stop();
  Status finish_teardown(bool& gone);
  JobFacts facts() const;
  Status write_status();
  json::Value status_operations(const json::Value& changed, const json::Value& wanted) const;
  kube::Outcome clean_up_finished();
  Status drop_credentials();
  void go_on(const Status& step);
  kube::Outcome outcome() const;

  void decide();
  std::string failure();  // sets failed_*: permanent failures
  bool stop_is_over() const;
  bool is_overdue() const;  // it is being deleted for so long that nothing more is waited for
  std::uint64_t own_failures() const;
  Duration time_to_come(const api::AllocatedPod& allocated, const kube::Pod* pod) const;
  Duration time_to_hear(MonoTime first_seen) const;
  Duration time_after_sleep() const;
  std::map<std::string, const api::AllocatedPod*> unstarted() const;  // by start_key
  std::optional<CommonRefusal> refused_by_all() const;
  std::string start_problems() const;  // why allocated pods are not made, bound or started
  bool holds_gpus() const {
    return job_.status.allocation && !job_.status.allocation->pods.empty();
  }
  bool is_allocated(const std::string& pod_name) const { return allocated_.contains(pod_name); }
  bool is_member(const std::string& pod_uid) const { return member_uids_.contains(pod_uid); }
  bool was_lost(const kube::Pod& pod) const;
  bool is_on_lost_node(const kube::Pod& pod) const;
  std::string lost_name(const api::AllocatedPod& pod) const {
    return job_.meta.ns + "/" + pod.name;
  }
  const kube::Pod* find(const std::string& name) const;
  Status release(const std::string& reason);
  void note_what_was_told(const api::TrainingJobStatus& wanted);
  void emit_transitions(const api::TrainingJobStatus& wanted);
  void emit_start_problems();
  void emit_pod_failures();
  void emit_unreadable();
  std::string last_failure() const;
  void emit(const kube::EventText& text);
  // Waits of this leader are timed by now(), times that stand in objects by wall().
  MonoTime now() const { return d_.executor.now(); }
  WallTime wall() const { return d_.executor.clock().wall(); }

  JobControllerDependencies& d_;
  std::shared_ptr<const JobObject> object_;
  const api::TrainingJob& job_;
  std::int64_t leader_;
  kube::Key key_;
  std::vector<std::shared_ptr<const kube::Pod>> pods_;
  std::map<std::string, const kube::Pod*> pods_by_name_;
  std::map<std::string, const api::AllocatedPod*> allocated_;  // by name
  std::set<std::string> lost_;
  const std::set<std::string> given_up_;  // keys, when the reconcile began
  std::optional<coordinator::View> view_;
  std::set<std::string> member_uids_;  // pods of the view's members
  std::vector<api::AvoidedNode> avoided_nodes_;
  std::optional<api::Credentials> credentials_;  // that the job's Secret holds
  std::optional<api::JobPriority> priority_;     // that a pod of it was tried with
  Intent intent_ = Intent::kTrain;
  std::string stop_reason_;
  std::optional<MonoTime> deleted_since_;  // it is being deleted; as this leader saw it first
  std::string queued_reason_, queued_message_;
  std::string failed_reason_, failed_message_;
  Status all_ = ok();                  // what went wrong
  bool makes_pods_ = true;             // one was refused: the others wait for the next reconcile
  bool is_pod_forbidden_ = false;      // one was, by who may lift that
  std::string pod_refusal_;            // what was said then, for people
  bool is_tried_ = true;               // a pod of the spec was tried and may be made
  std::string forbidden_;              // why the API server lets nobody make the job's pods now
  std::set<std::string> start_waits_;  // why allocated pods are not made or bound, for people
  Duration again_ = 30s;               // come back no later than this
};

}  // namespace rubato::control
