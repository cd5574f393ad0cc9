// The control thread's side: commands, fences, standings.
#include "common/log.h"
#include "common/planted.h"
#include "worker/step/engine.h"

#include <utility>

namespace rubato::worker {

WorkerName to_name(const wire::WorkerId& id) { return {id.pod_uid(), id.slot(), id.incarnation()}; }

Membership to_membership(const wire::Form& form, const WorkerName& self) {
  Membership membership;
  membership.generation = form.generation();
  membership.compare_states = form.compare_states();
  membership.collective = form.collective();
  membership.rank = static_cast<std::uint32_t>(form.members_size());  // not a member
  for (const wire::Member& member : form.members()) {
    Peer peer{to_name(member.id()), member.address().host(),
              static_cast<std::uint16_t>(member.address().port())};
    if (peer.name == self) membership.rank = membership.size();
    membership.members.push_back(std::move(peer));
  }
  return membership;
}

StepEngine::StepEngine(EngineParts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
StepEngine::~StepEngine() = default;
void StepEngine::command(const wire::WorkerCommand& command) { impl_->command(command); }
void StepEngine::beat() { impl_->beat(); }
int StepEngine::run() { return impl_->run(); }
void StepEngine::leave(const std::string& reason) { impl_->leave(reason); }

StepEngine::Impl::Impl(EngineParts given)
    : parts(std::move(given)), changed(parts.executor.make_condition()) {
  wire::WorkerId& id = *standing.mutable_id();
  id.set_pod_uid(parts.self.pod_uid);
  id.set_slot(parts.self.slot);
  id.set_incarnation(parts.self.incarnation);
  standing.mutable_listen()->set_host(parts.host);
  standing.mutable_listen()->set_port(parts.hub.port());
  standing.set_phase(wire::WORKER_STARTING);
  standing.set_cpu(parts.cpu);
  standing.set_compares_states(true);
  writer = std::make_unique<CheckpointWriter>(
      parts.executor, [this](std::uint64_t step, const Result<std::string>& path, double seconds) {
        checkpoint_done(step, path, seconds);
      });
  server = std::make_unique<StateServer>(parts.executor, [this] {
    const std::lock_guard lock(mutex);  // so that the step thread cannot just miss it
    changed->notify_all();
  });
  parts.hub.serve("state", [this](std::unique_ptr<Link> link, const WorkerName& from,
                                  std::uint64_t generation) {
    server->accept(std::move(link), from, generation);
  });
  forming = parts.executor.spawn("forming", [this](const std::stop_token&) { forming_loop(); });
}

StepEngine::Impl::~Impl() {
  leave("engine ends");
  probing = Task();
  forming = Task();
  parts.hub.serve("state", [](std::unique_ptr<Link>, const WorkerName&, std::uint64_t) {});
  server.reset();
  writer.reset();
  exporter.reset();
}

// ---- Standings
// -----------------------------------------------------------------------------------

wire::WorkerStanding StepEngine::Impl::standing_now() const {
  wire::WorkerStanding out = standing;
  const bool is_cut = standing.generation() < standing.fenced_below();
  if (is_cut && (out.phase() == wire::WORKER_TRAINING || out.phase() == wire::WORKER_PARKED)) {
    out.set_phase(wire::WORKER_ABORTED);
  }
  out.set_fenced_below(planted(Bug::kUnsettled) ? standing.fenced_below() : settled_below);
  const bool is_ready = prepared && prepared->is_ready;
  out.set_prepared_generation(is_ready ? prepared->membership.generation : 0);
  return out;
}

// What this worker is ready to switch to. A donor waits with it until its follower has every round
// but the open one: what is left to fetch at a switch is a stall of all. Who has not after
// kLevelRounds is slower than training, and is taken as it is.
std::uint64_t StepEngine::Impl::prepared_vote() {
  const std::uint64_t generation = standing_now().prepared_generation();
  if (generation == 0 || server->is_level(prepared->membership.members)) return generation;
  return ++prepared->refusals > kLevelRounds ? generation : 0;
}

void StepEngine::Impl::emit(wire::WorkerEvent event) {
  const std::lock_guard lock(mutex);  // held while it is handed on, so that standings stay in order
  if (factory) standing.set_collective(factory->collective());
  *event.mutable_standing() = standing_now();
  book_phase();
  for (const auto& [name, seconds] : phase_seconds) {
    wire::PhaseTime& phase = *event.add_phases();
    phase.set_name(name);
    phase.set_seconds(seconds);
  }
  parts.emit(event);
}

void StepEngine::Impl::beat() { emit({}); }

void StepEngine::Impl::fail(const std::string& reason, const std::string& message,
                            wire::FailureScope scope) {
  LOG_ERROR("step", "{}: {}", reason, message);
  wire::WorkerEvent event;
  event.mutable_failure()->set_reason(reason);
  event.mutable_failure()->set_message(message);
  event.mutable_failure()->set_permanent(scope != wire::FAILURE_SCOPE_ATTEMPT);
  event.mutable_failure()->set_scope(scope);
  emit(std::move(event));
}

// An attempt may go on without this worker, and its next process in the one after it.
void StepEngine::Impl::fail(const std::string& reason, const Error& error,
                            wire::FailureScope scope) {
  if (error.reason() != kDeviceLost) return fail(reason, error.what(), scope);
  {
    const std::lock_guard lock(mutex);
    has_lost_device = true;
  }
  fail(kDeviceLost, error.what(), wire::FAILURE_SCOPE_ATTEMPT);
  leave("its device is lost");
}

// ---- Commands
// ------------------------------------------------------------------------------------

void StepEngine::Impl::command(const wire::WorkerCommand& command) {
  switch (command.body_case()) {
    case wire::WorkerCommand::kAbort:
      abort(command.abort().below());
      return;
    case wire::WorkerCommand::kRequest:
      request(command.request());
      return;
    case wire::WorkerCommand::kRetire:
      leave(command.retire().reason());
      return;
    case wire::WorkerCommand::kProbe:
      probe(command.probe());
      return;
    case wire::WorkerCommand::kForm:
      if (command.form().members_of() != 0) return take_change(command.form());
      if (command.form().mode() == wire::FORM_PLANNED) {
        plan(command.form());
        return;
      }
      end_requests(command.form().generation());
      break;
    case wire::WorkerCommand::kFollow:
      end_requests(command.follow().generation());
      supersede_follow(command);
      break;
    case wire::WorkerCommand::kLook:
      supersede_follow(command);
      break;
    case wire::WorkerCommand::kConfigure:
      break;
    case wire::WorkerCommand::BODY_NOT_SET:
      LOG_WARNING("step", "a command that this version does not know");
      return;
  }
  const std::lock_guard lock(mutex);
  orders.push_back(command);
  changed->notify_all();
}

// A Form that says what changes. Where that does not fit what is known here, the standing says so,
// and all members are named.
void StepEngine::Impl::take_change(const wire::Form& form) {
  wire::WorkerCommand whole;
  *whole.mutable_form() = form;
  {
    const std::lock_guard lock(mutex);
    if (!wire::name_all(*whole.mutable_form(), standing.members_of(), known_members))
      standing.clear_members_of();
  }
  if (whole.form().members_of() == 0) return command(whole);
  LOG_WARNING("step", "generation {} changes members of {} that are not known here",
              form.generation(), form.members_of());
  emit({});
}

// The step thread's, which alone writes `membership`: of what comes, Forms may tell the change.
void StepEngine::Impl::take_membership(const Membership& next) {
  membership = next;
  replica->take_place(next.rank, next.size(), job.stop_steps);
  wire::Members members;
  for (const Peer& peer : next.members) {
    wire::Member& member = *members.Add();
    member.mutable_id()->set_pod_uid(peer.name.pod_uid);
    member.mutable_id()->set_slot(peer.name.slot);
    member.mutable_id()->set_incarnation(peer.name.incarnation);
    member.mutable_address()->set_host(peer.host);
    member.mutable_address()->set_port(peer.port);
  }
  const std::lock_guard lock(mutex);
  known_members = std::move(members);
  standing.set_members_of(next.generation);
}

// Another donor, or nobody has the state: what is still to be followed leads nowhere, and a donor
// that died would be dialed for as long as a generation may take to form.
void StepEngine::Impl::supersede_follow(const wire::WorkerCommand& command) {
  const std::lock_guard lock(mutex);
  const auto is_same = [&](const wire::Follow& other) {
    const wire::Follow& next = command.follow();
    return command.has_follow() && other.generation() == next.generation() &&
           to_name(other.donor()) == to_name(next.donor());
  };
  std::erase_if(orders, [&](const wire::WorkerCommand& order) {
    return order.has_follow() && !is_same(order.follow());
  });
  if (!is_same(followed)) end_follow();
}

void StepEngine::Impl::end_follow() {
  if (follow_cancel) follow_cancel->request_stop();
  if (follow_connection != nullptr) follow_connection->cut();
}

void StepEngine::Impl::abort(std::uint64_t below) {
  reach_aside("abort");
  {
    const std::lock_guard lock(mutex);
    if (below > standing.fenced_below()) standing.set_fenced_below(below);
    if (communicator && communicator->generation() < below) communicator->abort();
    if (prepared && prepared->membership.generation < below) prepared.reset();
    if (followed.generation() < below) end_follow();
    std::erase_if(planned, [&](const wire::Form& form) { return form.generation() < below; });
    std::erase_if(orders, [&](const wire::WorkerCommand& order) {
      return (order.has_form() && order.form().generation() < below) ||
             (order.has_follow() && order.follow().generation() < below);
    });
    if (factory) factory->fence(below);
    changed->notify_all();
  }
  parts.hub.fence(below);
  server->fence(below);
  reach_aside("fence");
  std::unique_lock lock(mutex);
  if (!wait_settled(lock)) {
    LOG_WARNING("step", "an update outlasts the abort below {}: no answer until it is done", below);
    return;
  }
  settled_below = standing.fenced_below();
  wire::WorkerEvent answer;
  *answer.mutable_standing() = standing_now();
  parts.emit(answer);
}

// True once what a standing says can no longer change: the step thread waits for orders, works in a
// generation that is not fenced, or will drop what it has in hand.
bool StepEngine::Impl::wait_settled(std::unique_lock<std::mutex>& lock) {
  const auto is_settled = [&] {
    const bool lives = standing.generation() >= standing.fenced_below() &&
                       standing.phase() == wire::WORKER_TRAINING;
    return mode == Mode::kIdle || lives;
  };
  if (changed->wait_until(lock, now() + kSettleLimit, is_settled)) return true;
  frozen = true;  // from here on the step thread accumulates and commits nothing
  return changed->wait_until(lock, now() + kCommitLimit,
                             [&] { return is_settled() || mode != Mode::kCommitting; });
}

// All at once, for silence takes the whole limit. One question at a time: who asks another while
// this one is open has given its answer up. Where the system has no thread for one of them, the
// answer says nothing of it.
void StepEngine::Impl::probe(const wire::Probe& order) {
  if (!probing.done()) return;
  auto begun = parts.executor.try_spawn("probe", [this, order](const std::stop_token& stop) {
    const MonoTime deadline = now() + order.limit_ms() * 1ms;
    std::vector<char> reached(static_cast<std::size_t>(order.members_size()), 0);
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < reached.size() && i < kProbedMost; ++i) {
      const wire::Member& member = order.members(static_cast<int>(i));
      const Peer to{to_name(member.id()), member.address().host(),
                    static_cast<std::uint16_t>(member.address().port())};
      auto task = parts.executor.try_spawn(
          "probe", [this, to, deadline, at = &reached[i]](const std::stop_token& stopped) {
            *at = parts.hub.probe(to, deadline, stopped) ? 1 : 0;
          });
      if (!task.ok()) break;
      tasks.push_back(std::move(task).value());
    }
    for (Task& task : tasks) task.join();
    if (stop.stop_requested()) return;
    wire::WorkerEvent event;
    wire::Reach& reach = *event.mutable_reach();
    reach.set_generation(order.generation());
    for (std::size_t i = 0; i < tasks.size(); ++i)
      *(reached[i] != 0 ? reach.add_reached() : reach.add_missed()) =
          order.members(static_cast<int>(i)).id();
    emit(std::move(event));
  });
  if (begun.ok())
    probing = std::move(begun).value();
  else
    LOG_WARNING("step", "a question for members goes unanswered: {}", begun.error().what());
}

void StepEngine::Impl::plan(const wire::Form& form) {
  const std::lock_guard lock(mutex);
  if (form.generation() < standing.fenced_below() || form.generation() <= standing.generation()) {
    LOG_INFO("step", "refused planned generation {}", form.generation());
    return;
  }
  planned.push_back(form);
  changed->notify_all();
}

void StepEngine::Impl::request(const wire::Request& request) {
  const std::lock_guard lock(mutex);
  wants_checkpoint = wants_checkpoint || request.checkpoint();
  wants_stop = wants_stop || request.stop();
  LOG_INFO("step", "asked to {}{}: {}", request.checkpoint() ? "checkpoint " : "",
           request.stop() ? "stop" : "go on", request.reason());
  // While a generation trains, the next vote carries it; otherwise the step thread sees to it.
  if (request.stop()) {
    end_follow();
    std::erase_if(orders, [](const wire::WorkerCommand& order) { return order.has_follow(); });
  }
  changed->notify_all();
}

// A Form that begins or goes on with training, or a Follow that leads there, ends a stop that was
// asked for before it: who still wants one asks again. Judged here and not by the step thread, so
// that a request that comes right behind it stands.
void StepEngine::Impl::end_requests(std::uint64_t generation) {
  const std::lock_guard lock(mutex);
  if (generation < standing.fenced_below() || generation <= standing.generation()) return;
  if (std::exchange(wants_stop, false)) wants_checkpoint = false;
}

void StepEngine::Impl::leave(const std::string& reason) {
  const std::lock_guard lock(mutex);
  if (retired) return;
  LOG_INFO("step", "retires: {}", reason);
  retired = true;
  if (communicator) communicator->abort();
  end_follow();
  if (factory) factory->fence(~std::uint64_t{0});
  parts.hub.fence(~std::uint64_t{0});
  changed->notify_all();
}

}  // namespace rubato::worker
