#include "tests/sim/sim_host.h"

#include "common/testing/sanitizer_fibers.h"
#include "tests/sim/other_build.h"
#include "tests/sim/phase.h"
#include "tests/sim/sim_links.h"
#include "worker/main/worker_process.h"
#include "worker/step/state_digest.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace rubato::sim {

using testing::SimProcess;
using worker::HostEvent;

namespace {
constexpr Duration kHungTick = 10s;
constexpr Duration kStruckStays = 1ms;
}  // namespace

// One worker process in its life. Shared with its fibers, which may never resume.
struct SimHost::Life {
  std::uint32_t slot = 0;
  WorkerTuple id;
  SimProcess* process = nullptr;
  std::unique_ptr<Condition> poked;  // a command, for the control task
  std::deque<std::string> commands;
  std::unique_ptr<FileSystem> disk;
  bool over = false;
  bool has_finished = false;  // it said so
  bool hangs = false;         // its step thread
  bool hangs_altogether = false;
  worker::Replica* replica = nullptr;
  std::optional<std::uint64_t> flip;  // a bit that is to flip
  std::function<void()> flip_back;    // one that has
  void heal() {
    if (flip_back) std::exchange(flip_back, nullptr)();
  }
};

SimHost::SimHost(HostParts parts)
    : parts_(std::move(parts)), changed_(parts_.pod.make_condition()) {}

SimHost::~SimHost() { end_all(); }

namespace {

// The control thread of a worker: commands as they come, and its heartbeat.
template <class Life>
void control(Life& life, worker::WorkerProcess& worker, const std::stop_token& stop) {
  SimProcess& process = *life.process;
  const std::stop_callback on_stop(stop, [&] { life.poked->notify_all(); });
  MonoTime next_beat = process.now() + worker::kBeat;
  std::mutex mutex;  // only satisfies Condition's signature
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      life.poked->wait_until(lock, next_beat,
                             [&] { return stop.stop_requested() || !life.commands.empty(); });
    }
    while (!life.commands.empty() && !stop.stop_requested()) {
      const std::string command = std::move(life.commands.front());
      life.commands.pop_front();
      worker.command(command);
    }
    if (process.now() < next_beat) continue;
    worker.beat();
    next_beat = process.now() + worker::kBeat;
  }
}

}  // namespace

Status SimHost::spawn(std::uint32_t slot, std::uint64_t incarnation) {
  auto life = std::make_shared<Life>();
  life->slot = slot;
  life->id = {parts_.pod_uid, slot, incarnation};
  life->process = &parts_.executor.process(parts_.pod.name() + "/" + std::to_string(slot));
  life->poked = life->process->make_condition();
  life->disk = parts_.disk(*life->process);
  lives_[slot] = life;
  World& world = parts_.world;
  world.began(life->id);
  (void)parts_.reach(slot, name_of(Phase::kStarting));
  auto body = [this, &world, life](const std::stop_token&) {
    SimProcess& process = *life->process;
    const auto hung = [life] {
      while (life->hangs) life->process->sleep_for(kHungTick);
    };
    ReplicaHooks hooks;
    hooks.isa = parts_.isa;
    hooks.has_memory = parts_.has_memory;
    hooks.start = [&process, times = parts_.times] { process.sleep_for(times.start); };
    hooks.work = [&process, hung, times = parts_.times] {
      process.sleep_for(times.micro);
      hung();
    };
    hooks.has_finished = [life] { return life->has_finished; };
    hooks.holds = [&world, life](std::uint64_t step, std::uint64_t digest) {
      world.holds(life->id, step, digest);
    };
    worker::WorkerProcess worker({
        .executor = process,
        .files = *life->disk,
        .network = make_sim_links(process, parts_.streams(process)),
        .job_uid = parts_.job_uid,
        .self = {parts_.pod_uid, life->slot, std::get<2>(life->id)},
        .host = parts_.host,
        .cpu = parts_.isa,
        .send =
            [this, &world, life](const std::string& event) {
              wire::WorkerEvent parsed;
              CHECK(parsed.ParseFromString(event));
              life->has_finished =
                  life->has_finished || parsed.standing().phase() == wire::WORKER_FINISHED;
              if (parts_.is_old_build) parsed = as_old_event(std::move(parsed));
              life->heal();
              world.emitted(life->id, parsed);
              HostEvent out;
              out.slot = life->slot;
              out.incarnation = std::get<2>(life->id);
              out.message = parts_.is_old_build ? parsed.SerializeAsString() : event;
              put(std::move(out));
            },
        .print = [](const std::string&) {},
        .make_replica =
            [hooks, life](const worker::TrainingConfig& config,
                          const worker::ReplicaOptions& options) {
              auto made = make_sim_replica(config, options, hooks);
              life->replica = made.ok() ? made->get() : nullptr;
              return made;
            },
        .make_factory =
            [is_old = parts_.is_old_build](worker::LinkHub& hub, worker::Device& device) {
              auto factory = worker::make_tcp_factory(hub, device);
              return is_old ? as_old_factory(std::move(factory)) : std::move(factory);
            },
        .hooks = {.reach =
                      [this, life, hung](std::string_view phase, std::uint64_t) {
                        judge_flip(*life, phase);
                        life->heal();
                        if (phase == name_of(Phase::kCommit)) flip_now(*life);
                        if (!parts_.reach(life->slot, phase)) return;
                        life->process->sleep_for(kStruckStays);
                        hung();
                      },
                  .open_ledger = {}},
    });
    Task task = process.spawn("control", [&life = *life, &worker](const std::stop_token& stop) {
      control(life, worker, stop);
    });
    const int status = worker.run();
    task = Task();
    end(*life, status, 0);
  };
  // Owned by the process: when it crashes, the task stays as a dead process's memory does.
  testing::mark_abandoned(new Task(life->process->spawn("worker", std::move(body))));
  return ok();
}

Status SimHost::send(std::uint32_t slot, const std::string& command) {
  const auto found = lives_.find(slot);
  if (found == lives_.end() || found->second->over) return Error(Code::kUnavailable, "no worker");
  Life& life = *found->second;
  wire::WorkerCommand parsed;
  CHECK(parsed.ParseFromString(command));
  parts_.world.commanded(life.id, parsed);
  if (!parts_.is_old_build) {
    life.commands.push_back(command);
  } else if (const auto known = as_old_command(std::move(parsed))) {
    life.commands.push_back(known->SerializeAsString());
  }
  life.poked->notify_all();
  return ok();
}

void SimHost::kill(std::uint32_t slot) {
  const auto found = lives_.find(slot);
  if (found == lives_.end() || found->second->over) return;
  const auto life = found->second;
  end(*life, -1, 9);
  testing::mark_abandoned(new std::shared_ptr<Life>(life));
  life->process->crash();
}

void SimHost::end(Life& life, int exit_code, int signal) {
  life.over = true;
  parts_.world.died(life.id);
  HostEvent event;
  event.kind = HostEvent::Kind::kExited;
  event.slot = life.slot;
  event.incarnation = std::get<2>(life.id);
  event.exit_code = exit_code;
  event.signal = signal;
  put(std::move(event));
}

void SimHost::put(HostEvent event) {
  events_.push_back(std::move(event));
  changed_->notify_all();
}

Result<HostEvent> SimHost::next(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_->wait_until(lock, deadline, [&] { return !events_.empty(); }))
    return Error(Code::kTimeout, "no event");
  HostEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void SimHost::end_all() {
  for (const auto& [slot, life] : lives_) kill(slot);
}

void SimHost::freeze() {
  for (const auto& [slot, life] : lives_)
    if (!life->over) life->process->freeze();
}

void SimHost::skew(Duration monotonic, Duration wall) {
  for (const auto& [slot, life] : lives_)
    if (!life->over) life->process->skew(monotonic, wall);
}

void SimHost::thaw() {
  for (const auto& [slot, life] : lives_)
    if (!life->over && !life->hangs_altogether) life->process->thaw();
}

void SimHost::hang(std::uint32_t slot, bool altogether) {
  const auto found = lives_.find(slot);
  if (found == lives_.end() || found->second->over) return;
  found->second->hangs = true;
  found->second->hangs_altogether = altogether;
  if (altogether) found->second->process->freeze();
}

void SimHost::flip_bit(std::uint32_t slot, std::uint64_t which) {
  const auto found = lives_.find(slot);
  if (found != lives_.end() && !found->second->over) found->second->flip = which;
}

void SimHost::flip_now(Life& life) {
  const Peer* peer = parts_.world.find_peer(life.id);
  if (!life.flip || peer == nullptr || parts_.world.members_with(life.id) < 2) return;
  const std::uint64_t which = *std::exchange(life.flip, std::nullopt);
  std::vector<std::pair<std::byte*, std::size_t>> state;  // each element, and its bytes
  for (const worker::Buffer& section : life.replica->sections()) {
    const std::size_t size = section.bytes() / static_cast<std::size_t>(section.count());
    for (std::int64_t i = 0; i < section.count(); ++i)
      state.emplace_back(
          static_cast<std::byte*>(section.address()) + static_cast<std::size_t>(i) * size, size);
  }
  const std::uint64_t part = peer->standing.seq() % worker::kStateParts;
  const std::size_t begin = state.size() * part / worker::kStateParts;
  const std::size_t end = state.size() * (part + 1) / worker::kStateParts;
  const auto [element, size] = state[begin + which % (end - begin)];
  const std::uint64_t bit = which / 64 % (8 * size - 1);
  std::byte* byte = element + bit / 8;
  const auto mask = static_cast<std::byte>(1u << (bit % 8));
  *byte ^= mask;
  life.flip_back = [byte, mask] { *byte ^= mask; };
  parts_.harmed();
}

// A round that comes to be applied has the vote of a state that was not the others'.
void SimHost::judge_flip(const Life& life, std::string_view phase) {
  if (life.flip_back && parts_.all_compare && phase == name_of(Phase::kApply))
    parts_.world.broken("a bit of a member's state had flipped, and its vote counted");
}

bool SimHost::hangs() const {
  return std::ranges::any_of(
      lives_, [](const auto& life) { return !life.second->over && life.second->hangs; });
}

}  // namespace rubato::sim
