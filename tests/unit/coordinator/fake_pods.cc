#include "tests/unit/coordinator/fake_pods.h"

#include "common/check.h"

#include <algorithm>

namespace rubato::coordinator {

Wish FakePods::make_wish(int pods, std::uint32_t start_workers) {
  Wish wish;
  wish.job = {"default", "gpt"};
  wish.uid = "job-uid";
  wish.training = "{}";
  wish.micro_batches = 8;
  wish.min_workers = 2;
  wish.start_workers = start_workers != 0 ? start_workers : static_cast<std::uint32_t>(pods);
  for (int i = 0; i < pods; ++i)
    wish.pods.push_back(
        {"gpt-" + std::to_string(i), uid(i), "n" + std::to_string(i), "H100", 1, false});
  return wish;
}

FakePods::FakePods(int pods, Record record, std::uint32_t start_workers)
    : wish(make_wish(pods, start_workers)),
      connected(static_cast<std::size_t>(pods), false),
      wants_stop(static_cast<std::size_t>(pods), false),
      crashes(static_cast<std::size_t>(pods), 0),
      machine(Timing{}, wish, std::move(record), now) {
  for (int i = 0; i < pods; ++i) {
    wire::WorkerStanding s;
    s.mutable_id()->set_pod_uid(uid(i));
    s.mutable_id()->set_incarnation(1);
    s.set_phase(wire::WORKER_STARTING);
    s.set_cpu("EPYC");
    s.mutable_listen()->set_host("10.0.0." + std::to_string(i + 1));
    standings.push_back(s);
  }
}

void FakePods::collect() {
  if (!asleep) machine.tick(now, now);
  Outputs out = machine.take_outputs();
  std::vector<std::pair<int, wire::Probe>> probes;
  for (Send& send : out.sends) {
    if (send.message.has_heartbeat_ack()) continue;
    CHECK(send.message.ParseFromString(send.frame()));
    const auto& command = send.message.order().command();
    if (command.has_probe()) probes.emplace_back(pod_of(send.pod_uid), command.probe());
    sent.push_back(std::move(send));
  }
  checkpoints_skipped += out.checkpoints_skipped;
  if (out.swap) {
    CHECK(!to_write.has_value());  // one write at a time
    to_write = std::move(out.swap);
  }
  for (const auto& [pod, probe] : probes) answer(pod, probe);
}

int FakePods::pod_of(const std::string& uid) { return std::stoi(uid.substr(4)); }

void FakePods::answer(int pod, const wire::Probe& probe) {
  if (!answers_probes || !connected[static_cast<std::size_t>(pod)]) return;
  say(pod, [&](wire::WorkerEvent& event) {
    wire::Reach& reach = *event.mutable_reach();
    reach.set_generation(probe.generation());
    for (const wire::Member& other : probe.members()) {
      const bool is_reached = reaches(pod, pod_of(other.id().pod_uid()));
      *(is_reached ? reach.add_reached() : reach.add_missed()) = other.id();
    }
  });
}

void FakePods::break_link(int from, int to) {
  say(from, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(machine.record().generation);
    event.mutable_suspect()->mutable_peer()->set_pod_uid(uid(to));
  });
}

void FakePods::connect(int pod) {
  wire::Hello hello;
  hello.set_pod_uid(uid(pod));
  hello.set_pod_name("gpt-" + std::to_string(pod));
  hello.set_node("n" + std::to_string(pod));
  *hello.add_workers() = standing(pod);
  if (counts_crashes) hello.set_crashes(crashes[static_cast<std::size_t>(pod)]);
  connected[static_cast<std::size_t>(pod)] = true;
  machine.connected(now, hello);
  collect();
}

void FakePods::connect_all() {
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) connect(i);
}

void FakePods::disconnect(int pod) {
  connected[static_cast<std::size_t>(pod)] = false;
  machine.disconnected(now, uid(pod), "connection closed");
  collect();
}

void FakePods::say(int pod) {
  say(pod, [](wire::WorkerEvent&) {});
}

void FakePods::say(int pod, const std::function<void(wire::WorkerEvent&)>& news) {
  wire::AgentMessage message;
  *message.mutable_worker()->mutable_standing() = standing(pod);
  news(*message.mutable_worker());
  machine.message(now, uid(pod), message);
  collect();
}

void FakePods::exit(int pod, int code, int signal) {
  wire::AgentMessage message;
  *message.mutable_exited()->mutable_id() = standing(pod).id();
  message.mutable_exited()->set_exit_code(code);
  message.mutable_exited()->set_signal(signal);
  message.mutable_exited()->set_reason("Crash");
  std::uint32_t& count = crashes[static_cast<std::size_t>(pod)];
  if (code != 0 && !was_restarted(pod)) ++count;
  if (counts_crashes) message.mutable_exited()->set_crashes(count);
  machine.message(now, uid(pod), message);
  collect();
}

void FakePods::beat() {
  for (std::size_t i = 0; i < standings.size(); ++i) {
    if (!connected[i]) continue;
    wire::AgentMessage message;
    *message.mutable_heartbeat()->add_workers() = standings[i];
    machine.message(now, uid(static_cast<int>(i)), message);
    collect();
  }
}

void FakePods::beat_in_turn(Duration period) {
  for (std::size_t i = 0; i < standings.size(); ++i) {
    now += period / static_cast<int>(standings.size());
    wire::AgentMessage message;
    *message.mutable_heartbeat()->add_workers() = standings[i];
    machine.message(now, uid(static_cast<int>(i)), message);
    if (now >= std::min(machine.next_tick(), machine.next_pass())) collect();
  }
}

void FakePods::after(Duration time) {
  const MonoTime end = now + time;
  while (now < end) {
    now = std::min({end, now + 50ms, std::max(machine.next_tick(), now + 1ms)});
    beat();
    collect();
  }
}

void FakePods::swap_done() {
  CHECK(to_write.has_value());
  written.push_back(*to_write);
  to_write.reset();
  machine.swapped(SwapResult::kDone);
  collect();
}

void FakePods::swap_conflict() {
  CHECK(to_write.has_value());
  to_write.reset();
  machine.swapped(SwapResult::kConflict);
  collect();
}

void FakePods::make_ready(int pod) {
  standing(pod).set_phase(wire::WORKER_READY);
  standing(pod).set_fingerprint("f00d");
  say(pod);
}

void FakePods::follow(int pod) {
  make_ready(pod);
  CHECK(last(pod, kFollow) != nullptr);
  standing(pod).set_phase(wire::WORKER_FOLLOWING);
  standing(pod).set_following(last(pod, kFollow)->follow().generation());
  say(pod);
}

void FakePods::catch_up(int pod) {
  standing(pod).set_has_state(true);
  standing(pod).set_seq(standing(0).seq());
  standing(pod).set_caught_up(true);
  say(pod, [](wire::WorkerEvent& event) { event.mutable_caught_up(); });
}

void FakePods::answer_abort(int pod) {
  standing(pod).set_fenced_below(machine.record().generation);
  standing(pod).set_phase(wire::WORKER_ABORTED);
  say(pod);
}

void FakePods::obey_aborts() {
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) {
    const auto* abort = last(i, wire::WorkerCommand::kAbort);
    if (abort == nullptr || !connected[static_cast<std::size_t>(i)]) continue;
    if (abort->abort().below() <= standing(i).fenced_below()) continue;
    standing(i).set_fenced_below(abort->abort().below());
    if (standing(i).phase() == wire::WORKER_TRAINING || standing(i).phase() == wire::WORKER_PARKED)
      standing(i).set_phase(wire::WORKER_ABORTED);
    say(i);
  }
}

void FakePods::obey_forms() {
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) {
    const auto* command = last(i, wire::WorkerCommand::kForm);
    if (command == nullptr || !connected[static_cast<std::size_t>(i)] || deaf == i) continue;
    wire::Form form = command->form();
    if (form.generation() <= standing(i).generation()) continue;
    if (const std::uint64_t base = form.members_of(); base != 0)
      CHECK(wire::name_all(form, base, known_members[base]));
    known_members[form.generation()] = form.members();
    if (form.mode() != wire::FORM_PLANNED) wants_stop[static_cast<std::size_t>(i)] = false;
    bool is_member = false;
    for (const auto& member : form.members())
      is_member = is_member || member.id().pod_uid() == uid(i);
    if (form.mode() == wire::FORM_START) {
      standing(i).set_seq(form.checkpoint_step());
      standing(i).set_step(form.checkpoint_step());
    } else if (form.mode() == wire::FORM_RECOVER) {
      standing(i).set_seq(form.base_seq());
    }
    standing(i).set_has_state(!wish.is_stateless);
    standing(i).set_reduced(false);
    standing(i).clear_held();
    if (is_member) standing(i).set_generation(form.generation());
    if (is_member && standing(i).members_of() != 0) standing(i).set_members_of(form.generation());
    standing(i).set_phase(!is_member      ? wire::WORKER_STOPPED
                          : form.parked() ? wire::WORKER_PARKED
                                          : wire::WORKER_TRAINING);
    say(i);
  }
}

void FakePods::obey_requests() {
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) {
    const auto* command = last(i, kRequest);
    if (command != nullptr && command->request().stop())
      wants_stop[static_cast<std::size_t>(i)] = true;
  }
}

void FakePods::begin_anew(int pod, std::optional<std::uint64_t> checkpoint) {
  wire::WorkerStanding& s = standing(pod);
  const std::uint64_t next = s.id().incarnation() + 1;
  exit(pod, -1, 9);
  const wire::Address listen = s.listen();
  wire::WorkerId id = s.id();
  id.set_incarnation(next);
  s = {};
  *s.mutable_id() = id;
  *s.mutable_listen() = listen;
  s.set_phase(wire::WORKER_STARTING);
  if (checkpoint) {
    s.set_has_checkpoint(true);
    s.set_checkpoint_step(*checkpoint);
  }
  say(pod);
  make_ready(pod);
}

void FakePods::settle() {
  for (int i = 0; i < 20; ++i) {
    obey_aborts();
    obey_forms();
    if (to_write) swap_done();
  }
}

void FakePods::commit_all(double step_seconds) {
  bool all_stop = false;
  std::vector<int> committed;
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) {
    if (standing(i).phase() != wire::WORKER_TRAINING) continue;
    if (!connected[static_cast<std::size_t>(i)]) continue;
    standing(i).mutable_last()->set_seq(standing(i).seq());
    standing(i).set_seq(standing(i).seq() + 1);
    standing(i).set_step(standing(i).step() + 1);
    standing(i).set_step_seconds(step_seconds);
    all_stop = all_stop || wants_stop[static_cast<std::size_t>(i)];
    committed.push_back(i);
  }
  for (const int i : committed) {
    if (all_stop) standing(i).set_phase(wire::WORKER_STOPPED);
    say(i);
  }
}

void FakePods::start_first(int count) {
  for (int i = 0; i < count; ++i) connect(i);
  for (int i = 0; i < count; ++i) make_ready(i);
  after(400ms);
  settle();
}

void FakePods::start_training() {
  connect_all();
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) make_ready(i);
  settle();
  commit_all();
  settle();
}

void FakePods::start_many() {
  change_wish([&](Wish& wanted) {
    wanted.micro_batches =
        std::max(wanted.micro_batches, static_cast<std::uint32_t>(standings.size()));
  });
  asleep = true;
  connect_all();
  for (int i = 0; i < static_cast<int>(standings.size()); ++i) make_ready(i);
  const auto pass = [this] {
    asleep = false;
    say(0);
    if (to_write) swap_done();
    asleep = true;
  };
  while (view().phase != Phase::kTraining) {
    const std::size_t told = sent.size();
    pass();
    obey_aborts();
    obey_forms();
    CHECK(sent.size() > told || view().phase == Phase::kTraining);  // else it never begins
  }
  commit_all();
  pass();
  asleep = false;
  clear();
}

void FakePods::change_wish(const std::function<void(Wish&)>& change) {
  change(wish);
  machine.wish(now, wish);
  collect();
}

const wire::WorkerCommand* FakePods::last(int pod, wire::WorkerCommand::BodyCase kind) const {
  const wire::WorkerCommand* found = nullptr;
  for (const Send& send : sent)
    if (send.pod_uid == uid(pod) && send.message.has_order() &&
        send.message.order().command().body_case() == kind)
      found = &send.message.order().command();
  return found;
}

std::size_t FakePods::count(int pod, wire::WorkerCommand::BodyCase kind) const {
  std::size_t count = 0;
  for (const Send& send : sent)
    count += send.pod_uid == uid(pod) && send.message.has_order() &&
             send.message.order().command().body_case() == kind;
  return count;
}

bool FakePods::was_restarted(int pod) const {
  for (const Send& send : sent)
    if (send.pod_uid == uid(pod) && send.message.has_restart_worker()) return true;
  return false;
}

}  // namespace rubato::coordinator
