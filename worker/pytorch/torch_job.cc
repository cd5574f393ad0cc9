#include "worker/pytorch/torch_job.h"

#include "common/json.h"
#include "common/log.h"
#include "worker/pytorch/torch_replica.h"
#include "worker/step/training_config.h"

#include <csignal>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

Result<std::unique_ptr<TorchJob>> TorchJob::start(const std::string& training) {
  std::signal(SIGPIPE, SIG_IGN);
  const bool is_alone = environment_variable("RUBATO_AGENT_FD").empty();
  std::unique_ptr<TorchJob> job(new TorchJob());
  if (is_alone) {
    if (training.empty()) return Error(Code::kInvalid, "a job that trains alone needs its steps");
    TRY(const TrainingConfig config, parse_training(training));
    job->alone_ = std::make_unique<LoneCoordinator>(
        training,
        static_cast<std::uint32_t>(config.sampler.global_batch / config.sampler.micro_batch),
        [raw = job.get()](const std::string& command) {
          const std::lock_guard lock(raw->mutex_);
          raw->commands_.push_back(command);
          raw->changed_.notify_all();
        });
    WorkerEnvironment environment;
    environment.self = {"alone", 0, 1};
    environment.host = "127.0.0.1";
    environment.device = device_of_environment();
    job->process_ = std::make_unique<WorkerProcess>(job->parts(environment, make_lone_network()));
    TRY_OK(job->run([raw = job.get()] { raw->train_alone(); }));
    return job;
  }
  TRY(const WorkerEnvironment environment, read_worker_environment());
  TRY(auto network, open_network(environment));
  ::fcntl(environment.agent_fd, F_SETFD,
          FD_CLOEXEC);  // programs that the script starts have it not
  job->agent_ = std::make_unique<AgentLink>(environment.agent_fd);
  job->process_ = std::make_unique<WorkerProcess>(job->parts(environment, std::move(network)));
  TRY_OK(job->run([raw = job.get()] {
    raw->agent_->run([raw](const std::string& body) { raw->process_->command(body); },
                     [raw] { raw->process_->beat(); }, kBeat);
    raw->agent_gone_.store(true);
    raw->process_->leave("the agent is gone");
  }));
  return job;
}

WorkerParts TorchJob::parts(const WorkerEnvironment& environment,
                            std::unique_ptr<LinkNetwork> network) {
  WorkerParts parts = parts_of(environment, executor_, files_, std::move(network),
                               [this](const std::string& event) { hear(event); });
  if (!agent_) parts.print = [](const std::string&) {};  // the script says what it likes
  parts.make_replica = [this](const TrainingConfig& config, const ReplicaOptions& options) {
    return make_torch_replica(config, options, queue_);
  };
  return parts;
}

// Any thread of the worker, under the engine's lock: commands must come from another one.
void TorchJob::hear(const std::string& text) {
  wire::WorkerEvent event;
  if (!event.ParseFromString(text)) return;
  if (event.standing().phase() == wire::WORKER_FINISHED) {
    is_finished_.store(true);
    if (agent_) queue_.end(true, "");
  }
  if (alone_) return alone_->hear(event);
  // A script that is busy lives: a body of its loop that takes a minute is no worker that hangs.
  event.mutable_standing()->set_micro_done(event.standing().micro_done() + queue_.signs_of_life());
  {
    const std::lock_guard lock(mutex_);
    standing_ = event.standing();
  }
  if (event.standing().phase() == wire::WORKER_FINISHED && !has_left_.load()) {
    event.mutable_standing()->set_phase(wire::WORKER_TRAINING);  // what is behind the loop counts
    event.mutable_standing()->set_phase_name("script");
  }
  agent_->send(event.SerializeAsString());
}

void TorchJob::tell(const std::string& text) {
  const json::Value said = json::parse(text).value_or(json::Value());
  wire::WorkerEvent event;
  wire::Failure& failure = *event.mutable_failure();
  failure.set_reason(said["reason"].string_or("ProgramFailed"));
  failure.set_message(said["error"].string_or("the script failed, and its reason cannot be read"));
  const bool is_for_good = said["scope"].string_view_or("attempt") != "attempt";
  failure.set_scope(is_for_good ? wire::FAILURE_SCOPE_WORKER : wire::FAILURE_SCOPE_ATTEMPT);
  failure.set_permanent(is_for_good);
  {
    const std::lock_guard lock(mutex_);
    standing_.set_has_state(false);  // it goes with the script
    *event.mutable_standing() = standing_;
  }
  agent_->send(event.SerializeAsString());
}

// The steps first: where the other thread cannot be had, the destructor ends them.
Status TorchJob::run(std::function<void()> control) {
  TRY(steps_, executor_.try_spawn("steps", [this](std::stop_token) {
    process_->run();
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      changed_.notify_all();
    }
    const std::string failure = alone_ ? alone_->failure() : "";
    const char* why = agent_gone_.load() ? "the agent is gone" : "Retired";
    queue_.end(is_finished_.load() && failure.empty(), failure.empty() ? why : failure);
  }));
  TRY(control_, executor_.try_spawn(
                    "control", [control = std::move(control)](std::stop_token) { control(); }));
  return ok();
}

void TorchJob::train_alone() {
  alone_->start();
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    changed_.wait_for(lock, kBeat, [&] { return is_over_ || !commands_.empty(); });
    while (!commands_.empty()) {
      const std::string command = std::move(commands_.front());
      commands_.pop_front();
      lock.unlock();
      process_->command(command);
      lock.lock();
    }
    lock.unlock();
    process_->beat();
    lock.lock();
  }
}

// Others may be behind their loops still, and a recovery needs this one until the job is done.
void TorchJob::await_end_of_job() {
  has_left_.store(true);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kBodyMost + 1min, [&] { return is_over_; });
}

void TorchJob::stop(const std::string& failure) {
  if (agent_ && is_finished_.load() && failure.empty()) await_end_of_job();
  queue_.stop();
  if (process_) process_->leave("the script has ended");
  steps_.join();
  if (agent_ && !failure.empty()) tell(failure);  // the last word
  if (agent_) agent_->stop();
  control_.join();
}

void TorchJob::on_exit_of_process(int status, void* job) {
  auto& self = *static_cast<TorchJob*>(job);
  if (::getpid() != self.process_at_exit_) return;
  const int code = status & 0xff;  // as who waits for the process sees it
  if (code == 0) return self.stop(self.failure_at_exit_);
  json::Value failure = json::Value::object();
  failure.set("error", "the script exited with status " + std::to_string(code));
  self.stop(json::dump(failure));
}

// The newest handler is the first to run, before all destructors of static objects.
void TorchJob::stop_at_exit(const std::string& failure) {
  failure_at_exit_ = failure;
  process_at_exit_ = ::getpid();
  if (!agent_ || ::on_exit(&TorchJob::on_exit_of_process, this) != 0) stop(failure);
}

TorchJob::~TorchJob() { stop(); }

}  // namespace rubato::worker
