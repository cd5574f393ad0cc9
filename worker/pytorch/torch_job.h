// TorchJob: a worker inside a script's process: the step engine in threads of its own, the script
// as its replica. In a pod (RUBATO_AGENT_FD is set) it obeys the agent, as rubato-worker does;
// elsewhere it trains alone.
//
// Threads: next(), reply(), stop() and stop_at_exit() belong to the script's thread.
#pragma once

#include "common/executor.h"
#include "common/files.h"
#include "worker/main/agent_link.h"
#include "worker/main/worker_environment.h"
#include "worker/main/worker_process.h"
#include "worker/pytorch/lone_coordinator.h"
#include "worker/pytorch/request_queue.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

namespace rubato::worker {

class TorchJob {
 public:
  // `training`: JSON of spec.training, for a job that trains alone; empty in a pod, where the
  // agent's orders bring it. kInvalid: what is missing, or there where it must not be.
  // kUnavailable: the system gives no threads now.
  static Result<std::unique_ptr<TorchJob>> start(const std::string& training);
  ~TorchJob();  // stop()
  // See RequestQueue.
  std::optional<std::string> next(std::chrono::milliseconds limit) { return queue_.next(limit); }
  void reply(const std::string& text) { queue_.reply(text); }
  // Leaves the job and joins all threads; after the last step once the job is done, which waits for
  // the scripts of all workers. `failure`: why the script ends before the job does, as
  // the reply to a request has it ({"error", "reason", "scope"}); it is told to the coordinator.
  void stop(const std::string& failure = "");
  // In a pod stop() is left to exit(), which has the status of the process: Python tells nobody of
  // a SystemExit before. One other than 0 is the failure of a script without `failure`, and of one
  // with it. The job must live as long as the process. Alone it is stop().
  void stop_at_exit(const std::string& failure);

 private:
  TorchJob() = default;
  WorkerParts parts(const WorkerEnvironment& environment, std::unique_ptr<LinkNetwork> network);
  Status run(std::function<void()> control);
  void hear(const std::string& event);
  void tell(const std::string& failure);
  void train_alone();
  void await_end_of_job();
  static void on_exit_of_process(int status, void* job);

  ThreadExecutor executor_;
  PosixFileSystem files_;
  RequestQueue queue_{executor_.clock()};
  std::unique_ptr<AgentLink> agent_;        // null: alone
  std::unique_ptr<LoneCoordinator> alone_;  // null: in a pod
  std::unique_ptr<WorkerProcess> process_;
  std::mutex mutex_;
  wire::WorkerStanding standing_;  // the newest
  std::condition_variable changed_;
  std::deque<std::string> commands_;  // of the lone coordinator; as many as it sends: three
  bool is_over_ = false;              // the engine
  std::atomic<bool> agent_gone_{false};
  std::atomic<bool> is_finished_{false};
  std::atomic<bool> has_left_{false};  // the script, after the last step
  std::string failure_at_exit_;
  pid_t process_at_exit_ = 0;  // whose exit() counts: a forked child has the handler, too
  Task control_;
  Task steps_;
};

}  // namespace rubato::worker
