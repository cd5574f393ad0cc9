#include "tests/sim/model_host.h"

#include <algorithm>

namespace rubato::sim {

using worker::HostEvent;

ModelHost::ModelHost(Executor& executor, World& world, std::string pod_uid, std::string host)
    : executor_(executor),
      world_(world),
      pod_uid_(std::move(pod_uid)),
      host_(std::move(host)),
      changed_(executor.make_condition()),
      poked_(executor.make_condition()) {
  driver_ = executor_.spawn("workers-" + pod_uid_, [this](std::stop_token stop) { drive(stop); });
}

ModelHost::~ModelHost() { driver_ = Task(); }

Status ModelHost::spawn(std::uint32_t slot, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  wire::WorkerId id;
  id.set_pod_uid(pod_uid_);
  id.set_slot(slot);
  id.set_incarnation(incarnation);
  Life& life = lives_[slot];
  life.incarnation = incarnation;
  // Events are put while the driver holds the mutex: the constructor's own too.
  life.worker = std::make_unique<ModelWorker>(
      world_, id, host_, WorkerTimes{}, [this, slot, incarnation](const wire::WorkerEvent& event) {
        HostEvent out;
        out.slot = slot;
        out.incarnation = incarnation;
        out.message = event.SerializeAsString();
        put(std::move(out));
      });
  poke();
  return ok();
}

Status ModelHost::send(std::uint32_t slot, const std::string& command) {
  const std::lock_guard lock(mutex_);
  const auto found = lives_.find(slot);
  if (found == lives_.end() || !found->second.worker) return Error(Code::kUnavailable, "no worker");
  wire::WorkerCommand parsed;
  CHECK(parsed.ParseFromString(command));
  found->second.worker->command(parsed);
  poke();
  return ok();
}

void ModelHost::kill(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  end(slot, -1, 9);
}

void ModelHost::end(std::uint32_t slot, int exit_code, int signal) {
  const auto found = lives_.find(slot);
  if (found == lives_.end() || !found->second.worker) return;
  found->second.worker->die();
  found->second.worker.reset();
  HostEvent event;
  event.kind = HostEvent::Kind::kExited;
  event.slot = slot;
  event.incarnation = found->second.incarnation;
  event.exit_code = exit_code;
  event.signal = signal;
  put(std::move(event));
}

void ModelHost::put(HostEvent event) {
  events_.push_back(std::move(event));
  changed_->notify_all();
}

Result<HostEvent> ModelHost::next(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_->wait_until(lock, deadline, [&] { return !events_.empty(); }))
    return Error(Code::kTimeout, "no event");
  HostEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void ModelHost::poke() {
  poke_ = true;
  poked_->notify_all();
}

void ModelHost::hang(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  const auto found = lives_.find(slot);
  if (found != lives_.end() && found->second.worker) found->second.worker->hang();
}

bool ModelHost::hangs() {
  const std::lock_guard lock(mutex_);
  return std::any_of(lives_.begin(), lives_.end(), [](const auto& life) {
    return life.second.worker && life.second.worker->hangs();
  });
}

MonoTime ModelHost::next_wake() {
  const MonoTime now = world_.now();
  MonoTime wake = now + 1s;
  for (const auto& [slot, life] : lives_)
    if (life.worker) wake = std::min(wake, life.worker->next_wake(now));
  return executor_.now() + (wake - now);
}

void ModelHost::drive(const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] { poked_->notify_all(); });
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    poked_->wait_until(lock, next_wake(), [&] { return poke_ || stop.stop_requested(); });
    poke_ = false;
    for (auto& [slot, life] : lives_)
      if (life.worker && !life.worker->step(world_.now())) end(slot, 0, 0);
  }
}

}  // namespace rubato::sim
