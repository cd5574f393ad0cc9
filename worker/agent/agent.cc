#include "worker/agent/agent.h"

#include "common/log.h"
#include "common/process_metrics.h"
#include "common/version.h"
#include "worker/agent/agent_series.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/worker_slot.h"
#include "worker/protocol/wire.pb.h"

#include <algorithm>
#include <deque>

#include <fmt/core.h>

namespace rubato::worker {

namespace {

constexpr std::size_t kInboxMax =
    10000;  // frames and events not yet handled; more is a broken peer
// Of a script that ends with status 0.
constexpr const char* kNoJob =
    "the script has made no rubato.Job; one that does not call Rubato is for runtime torchrun";

struct Input {
  std::optional<HostEvent> host;
  std::string frame;  // from the coordinator, when `host` is empty
};

std::string pack(const wire::AgentMessage& message) { return message.SerializeAsString(); }

}  // namespace

struct Agent::Impl {
  Executor& executor;
  WorkerHost& host;
  AgentConfig config;
  std::vector<WorkerSlot> slots;

  std::mutex mutex;
  std::unique_ptr<Condition> changed;
  AgentSeries series;          // guarded by mutex
  std::deque<Input> inbox;     // guarded by mutex
  bool terminating = false;    // guarded by mutex
  bool welcome_news = false;   // guarded by mutex
  bool unwanted = false;       // guarded by mutex: no pod of the job, the leader says
  Duration heartbeat = 250ms;  // guarded by mutex

  std::optional<MonoTime> leave_by;   // SIGTERM was handled
  std::optional<MonoTime> stop_at;    // programs that run then are told to end
  std::optional<MonoTime> end_by;     // a Shutdown was obeyed
  std::optional<MonoTime> retire_by;  // a worker has retired: the others do, too
  std::uint64_t heartbeats = 0;
  bool is_end_told = true;                 // of the worker that ended last
  std::optional<MonoTime> tell_by;         // all have ended, one of them for good
  std::uint32_t crashes = 0;               // guarded by mutex: Hello.crashes
  std::optional<wire::Exited> last_crash;  // guarded by mutex: Hello.last_crash
  std::uint32_t crashes_told = 0;          // guarded by mutex: by the last hello
  CoordinatorLink link;
  Task host_task;

  Impl(Executor& e, net::Network& network, WorkerHost& h, AgentConfig c)
      : executor(e),
        host(h),
        config(std::move(c)),
        slots(config.slots),
        changed(e.make_condition()),
        series{.job = config.job, .pod = config.pod_name, .node = config.node},
        link(e, network, config,
             {.hello = [this](const std::string& token, std::uint64_t epoch,
                              const std::string& seal) { return hello(token, epoch, seal); },
              .welcomed =
                  [this](Duration period) {
                    std::lock_guard lock(mutex);
                    heartbeat = period;
                    welcome_news = true;
                    unwanted = false;
                    changed->notify_all();
                  },
              .deliver = [this](std::string frame) { put({std::nullopt, std::move(frame)}); },
              .refused =
                  [this](const std::string& reason) {
                    std::lock_guard lock(mutex);
                    unwanted = reason == "NotWanted";
                    changed->notify_all();
                  }}) {}

  // The end of a worker is never dropped: until it is heard of, no other is started.
  void put(Input input) {
    const bool is_end = input.host && input.host->kind == HostEvent::Kind::kExited;
    std::lock_guard lock(mutex);
    if (inbox.size() >= kInboxMax && !is_end) {
      LOG_ERROR("agent", "the inbox is full; a message was dropped");
      return;
    }
    inbox.push_back(std::move(input));
    changed->notify_all();
  }

  // Called from the link's task: standings are copied under the lock that run() holds to change
  // them.
  std::string hello(const std::string& token, std::uint64_t leader_epoch,
                    const std::string& leader_seal) {
    wire::AgentMessage message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_version_min(1);
    hello.set_version_max(1);
    hello.set_build(version_of("rubato"));
    hello.set_job_uid(config.job_uid);
    hello.set_token(token);
    hello.set_pod_uid(config.pod_uid);
    hello.set_pod_name(config.pod_name);
    hello.set_node(config.node);
    hello.set_leader_epoch(leader_epoch);
    hello.set_leader_seal(leader_seal);
    std::lock_guard lock(mutex);
    for (const WorkerSlot& slot : slots)
      if (slot.alive) *hello.add_workers() = slot.standing;
    hello.set_crashes(crashes);
    if (last_crash) *hello.mutable_last_crash() = *last_crash;
    crashes_told = crashes;
    return pack(message);
  }

  int run() {
    for (std::uint32_t i = 0; i < slots.size(); ++i) start_worker(i);
    host_task = executor.spawn("workers", [this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        auto event = host.next(executor.now() + 1s);
        if (event.ok()) put({std::move(*event), ""});
      }
    });
    link.start();
    MonoTime next_heartbeat = executor.now();
    std::optional<int> status;
    while (!status) {
      std::deque<Input> inputs = wait(next_heartbeat);
      for (Input& input : inputs) {
        if (input.host)
          on_host(*input.host);
        else
          on_frame(input.frame);
      }
      if (executor.now() >= next_heartbeat) {
        send_heartbeat();
        std::lock_guard lock(mutex);
        next_heartbeat = executor.now() + heartbeat;
      }
      start_due_workers();
      if (stop_at && executor.now() >= *stop_at) stop_programs();
      status = end_status();
    }
    link.stop();
    host_task = Task();
    return *status;
  }

  std::deque<Input> wait(MonoTime next_heartbeat) {
    std::unique_lock lock(mutex);
    MonoTime deadline = next_heartbeat;
    for (const WorkerSlot& slot : slots) {
      if (slot.start_at && !is_ending()) deadline = std::min(deadline, *slot.start_at);
    }
    if (leave_by) deadline = std::min(deadline, *leave_by);
    if (stop_at) deadline = std::min(deadline, *stop_at);
    if (end_by) deadline = std::min(deadline, *end_by);
    if (const auto& end = tell_by ? tell_by : retire_by) deadline = std::min(deadline, *end);
    const bool announced = leave_by.has_value();
    changed->wait_until(lock, deadline, [&] {
      return !inbox.empty() || (terminating && !announced) || welcome_news ||
             (announced && unwanted);
    });
    const bool tell_leaving = terminating && (!announced || welcome_news);
    const bool tell_failures = std::exchange(welcome_news, false);
    std::deque<Input> inputs;
    inputs.swap(inbox);
    lock.unlock();
    if (tell_leaving) announce_leave();
    if (tell_failures) announce_failures();
    return inputs;
  }

  void announce_leave() {
    if (!leave_by) {
      leave_by = executor.now() + config.grace;
      if (config.runs_program) stop_at = executor.now() + config.grace / 2;
    }
    wire::AgentMessage message;
    const auto left = std::chrono::duration_cast<std::chrono::seconds>(*leave_by - executor.now());
    message.mutable_leaving()->set_grace_seconds(
        static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 0)));
    link.send(pack(message));
  }

  // Who leads now may have heard nothing of it: neither by a hello nor by the message of its time.
  void announce_failures() {
    wire::AgentMessage message;
    {
      std::lock_guard lock(mutex);
      if (crashes > crashes_told) *message.mutable_exited() = *last_crash;
    }
    if (message.has_exited()) link.send(pack(message));
    std::ranges::for_each(slots, [&](const WorkerSlot& slot) { announce_failure(slot); });
    is_end_told = true;
  }

  void announce_failure(const WorkerSlot& slot) {
    if (!slot.has_lasting_failure()) return;
    wire::AgentMessage message;
    *message.mutable_worker() = *slot.lasting_failure;
    *message.mutable_worker()->mutable_standing() = slot.standing;  // what it holds now
    link.send(pack(message));
  }

  void start_worker(std::uint32_t index) {
    WorkerSlot& slot = slots[index];
    const Status spawned = host.spawn(index, slot.incarnation + 1);
    {
      std::lock_guard lock(mutex);
      slot.begin(config.pod_uid, index, spawned.ok());
    }
    if (spawned.ok()) return;
    LOG_ERROR("agent", "worker {} cannot be started: {}", index, spawned.error().to_string());
    if (spawned.error().code() == Code::kNotFound)
      slot.lasting_failure = slot.missing_program(spawned.error().what());
    announce_failure(slot);
    slot.plan_restart(executor.now());
  }

  bool is_ending() const { return leave_by || end_by || retire_by; }  // starts no worker any more

  void start_due_workers() {
    if (is_ending()) return;
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      if (slots[i].start_at && executor.now() >= *slots[i].start_at) start_worker(i);
    }
  }

  void on_host(const HostEvent& event) {
    WorkerSlot& slot = slots.at(event.slot);
    if (event.incarnation != slot.incarnation) return;  // of a life that is over
    if (event.kind == HostEvent::Kind::kExited) return on_exit(event, slot);
    wire::AgentMessage message;
    if (!message.mutable_worker()->ParseFromString(event.message)) {
      LOG_ERROR("agent", "worker {} sent what cannot be read; it is killed", event.slot);
      return host.kill(event.slot);
    }
    {
      std::lock_guard lock(mutex);
      slot.standing = message.worker().standing();
      series.workers[event.slot].take(message.worker(), executor.now());
    }
    message.mutable_worker()->clear_phases();  // of the agent's metrics alone
    if (message.worker().has_failure()) {
      slot.last_failure = message.worker().failure().message();
      const bool is_permanent = message.worker().failure().permanent();
      slot.failed = slot.failed || is_permanent;
      if (is_permanent || config.runs_program) slot.lasting_failure = message.worker();
    }
    link.send(pack(message));
  }

  void on_exit(const HostEvent& event, WorkerSlot& slot) {
    const bool was_to_end = slot.is_to_retire || is_ending();
    const bool has_no_job = config.is_script && !slot.standing.has_listen() && !was_to_end;
    const bool wanted = event.signal == 0 && event.exit_code == 0 && !has_no_job;
    const bool restart = !wanted && slot.may_restart() && !is_ending();
    wire::AgentMessage message;
    *message.mutable_exited() = slot.exited(event, restart);
    if (has_no_job && event.exit_code == 0) {
      message.mutable_exited()->set_reason("Error");
      message.mutable_exited()->set_message(kNoJob);
    }
    {
      std::lock_guard lock(mutex);
      slot.end();
      ++series.workers[event.slot].exits[message.exited().reason()];
      const bool is_crash = !wanted && !slot.ordered;
      if (is_crash) ++crashes;
      message.mutable_exited()->set_crashes(crashes);
      if (is_crash) last_crash = message.exited();
    }
    slot.retired = !restart;
    is_end_told = link.send(pack(message));
    LOG_INFO("agent", "worker {} ended: exit code {}, signal {}{}", event.slot, event.exit_code,
             event.signal, restart ? "; it is started again" : "");
    if (restart) slot.plan_restart(executor.now());
    // A pod retires as one. Whoever told it may not be there any more to see that one of its
    // workers hangs; and the next leader could do nothing with a pod that has some of its workers
    // for ever.
    if (!wanted || is_ending()) return;
    retire_by = executor.now() + kEndLimit;
    retire_workers("another worker of this pod has retired");
  }

  void on_frame(const std::string& frame) {
    wire::CoordinatorMessage message;
    if (!message.ParseFromString(frame)) return;
    if (message.has_order()) return relay(message.order());
    if (message.has_restart_worker()) {
      const auto& order = message.restart_worker();
      if (is_current(order.id())) {
        LOG_WARNING("agent", "worker {} is restarted: {}", order.id().slot(), order.reason());
        slots[order.id().slot()].ordered = true;
        host.kill(order.id().slot());
      }
      return;
    }
    if (message.has_shutdown() && !end_by) {
      LOG_INFO("agent", "shut down: {}", message.shutdown().reason());
      end_by = executor.now() + kEndLimit;
      retire_workers(message.shutdown().reason());
    }
  }

  void retire_workers(const std::string& reason) {
    wire::WorkerCommand retire;
    retire.mutable_retire()->set_reason(reason);
    const std::string command = retire.SerializeAsString();
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      if (slots[i].alive) (void)host.send(i, command);
    }
  }

  // Who leads has not had them ended, or is not reached: half of the time that is left is theirs.
  void stop_programs() {
    stop_at.reset();
    wire::WorkerCommand stop;
    stop.mutable_request()->set_stop(true);
    stop.mutable_request()->set_reason("its pod is told to go");
    const std::string command = stop.SerializeAsString();
    for (std::uint32_t i = 0; i < slots.size(); ++i)
      if (slots[i].alive && slots[i].standing.phase() == wire::WORKER_TRAINING)
        (void)host.send(i, command);
  }

  bool is_current(const wire::WorkerId& id) const {
    return id.pod_uid() == config.pod_uid && id.slot() < slots.size() && slots[id.slot()].alive &&
           slots[id.slot()].incarnation == id.incarnation();
  }

  void relay(const wire::WorkerOrder& order) {
    if (!is_current(order.id())) return;  // for a worker that is gone; its successor says hello
    if (order.command().has_retire()) slots[order.id().slot()].is_to_retire = true;
    const Status sent = host.send(order.id().slot(), order.command().SerializeAsString());
    if (!sent.ok()) LOG_WARNING("agent", "worker {}: {}", order.id().slot(), sent.error().what());
  }

  void send_heartbeat() {
    wire::AgentMessage message;
    wire::Heartbeat& heartbeat_message = *message.mutable_heartbeat();
    heartbeat_message.set_sequence(++heartbeats);
    for (const WorkerSlot& slot : slots)
      if (slot.alive) *heartbeat_message.add_workers() = slot.standing;
    link.send(pack(message));
  }

  // The job went on without us while we were frozen or cut off.
  bool is_unwanted() {
    std::lock_guard lock(mutex);
    return unwanted;
  }

  std::optional<int> end_status() {
    const bool none_alive = std::ranges::none_of(slots, &WorkerSlot::alive);
    const bool all_retired = std::ranges::all_of(slots, &WorkerSlot::retired);
    if (end_by && (none_alive || executor.now() >= *end_by)) return kill_all(0);
    if (leave_by && none_alive) return 0;  // retired in order before the grace ran out
    const bool any_state = std::any_of(slots.begin(), slots.end(), [&](const WorkerSlot& slot) {
      const bool has_program = config.runs_program && slot.standing.generation() > 0;
      return slot.alive && (slot.standing.has_state() || has_program);
    });
    if (leave_by && !any_state) return kill_all(143);  // nothing here that anybody could miss
    if (leave_by && is_unwanted()) return kill_all(143);
    if (leave_by && executor.now() >= *leave_by) return kill_all(143);
    if (!all_retired && !(retire_by && executor.now() >= *retire_by)) return std::nullopt;
    if (std::ranges::all_of(slots, &WorkerSlot::may_restart)) return kill_all(0);
    if (!tell_by) tell_by = executor.now() + kTellLimit;
    if (!is_end_told && executor.now() < *tell_by) return std::nullopt;
    return kill_all(1);
  }

  int kill_all(int status) {
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      if (slots[i].alive) host.kill(i);
    }
    return status;
  }
};

Agent::Agent(Executor& executor, net::Network& network, WorkerHost& host, AgentConfig config)
    : impl_(std::make_unique<Impl>(executor, network, host, std::move(config))) {}
Agent::~Agent() = default;

int Agent::run() { return impl_->run(); }

std::string Agent::metrics_text() const {
  Exposition out;
  expose_process("rubato-agent", out);
  std::lock_guard lock(impl_->mutex);
  impl_->series.connected = impl_->link.is_connected();
  for (std::uint32_t i = 0; i < impl_->slots.size(); ++i)
    impl_->series.workers[i].incarnation = impl_->slots[i].incarnation;
  expose(impl_->series, out);
  return out.take();
}

void Agent::terminate() {
  std::lock_guard lock(impl_->mutex);
  impl_->terminating = true;
  impl_->changed->notify_all();
}

}  // namespace rubato::worker
