#include "tests/fault/kill_play.h"

#include "common/clock.h"
#include "tests/fault/survivors.h"
#include "tests/integration/coordinator/job_processes.h"

#include <algorithm>
#include <csignal>
#include <ranges>
#include <stdexcept>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace rubato::fault {
namespace {

namespace fs = std::filesystem;
using coordinator::JobProcesses;
using coordinator::Phase;

constexpr int kDisks = 8;              // more than there are pods
constexpr auto kPace = 15ms;           // of a step while the story is told
constexpr std::uint64_t kLatest = 90;  // from here on steps are slower still: the story needs them
constexpr auto kSlowPace = 250ms;
constexpr Duration kLongSilence = 2500ms;  // a silent node comes back even if nobody misses it
constexpr Duration kLongSplit = 25s;       // nobody is silent: who is left out takes longer to say
constexpr auto kGiveUp = 120s;             // for every wait
constexpr auto kSettled = 200ms;       // SIGCONT until then: what stopped may still be on its way
constexpr Duration kDiskTrouble = 2s;  // of a disk; some checkpoints become due meanwhile
constexpr Duration kLongDiskTrouble = 8s;  // four times the progress deadline
constexpr Duration kRackTrouble = 5s;      // one half of the workers goes on meanwhile
constexpr Duration kLookInterval = 50ms;   // at the processes

bool breaks_disks(const KillCase& one) {
  return std::ranges::any_of(one.hits, [](const Hit& hit) { return is_of_disk(hit.fault); });
}

coordinator::JobOptions options(NodeNetworks* networks, const KillCase& one) {
  coordinator::JobOptions options;
  options.steps = kSteps;
  options.layers = 1;
  options.hidden = 32;
  options.micro = kMicro;
  options.length = kLength;
  options.checkpoint_every = 20;
  options.evaluate_every = 40;
  options.validation = kValidation;
  options.ledger = true;
  options.nodes = networks;
  options.micro_batches = one.micro_batches;
  options.disks = breaks_disks(one) ? kDisks : 0;
  // As in production, but shorter: a case waits for these.
  options.timing.heartbeat = 100ms;
  options.timing.silence = 1s;
  options.timing.standing_deadline = 1s;
  options.timing.form_deadline = 4s;
  options.timing.follow_deadline = 20s;
  options.timing.progress_floor = 2s;
  options.timing.first_step = 3s;
  return options;
}

const char* action_of(Fault fault) {
  switch (fault) {
    case Fault::kKill:
      return "kill";
    case Fault::kPod:
      return "kill-group";
    case Fault::kStop:
    case Fault::kCut:  // held while the cable is pulled, or the disk broken
    case Fault::kDeaf:
    case Fault::kSplit:
    case Fault::kRack:
    case Fault::kFull:
    case Fault::kSlow:
    case Fault::kEio:
      return "stop";
    case Fault::kFreeze:
      return "stop-group";
  }
  return "?";
}

DiskState state_of(Fault fault) {
  if (fault == Fault::kFull) return DiskState::kFull;
  return fault == Fault::kSlow ? DiskState::kSlow : DiskState::kFailing;
}

// A place of the case did not come: the first of its faults led the job past the second one's.
struct Missed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
constexpr int kTries = 3;  // of a case that misses a fault

// One case as it goes. Throws std::runtime_error where it goes no further.
class Story {
 public:
  Story(const KillCase& one, JobProcesses& job, NodeNetworks* networks)
      : case_(one), job_(job), networks_(networks), survivors_(job) {
    for (const Hit& hit : one.hits) struck_.push_back({&hit, one.pod_of(hit.role)});
  }

  void tell() {
    job_.min_workers = case_.scene == Scene::kPark ? static_cast<std::uint32_t>(case_.world) : 1;
    job_.start_workers = static_cast<std::uint32_t>(case_.world);
    job_.lead(1);
    const bool from_start = case_.scene == Scene::kStart;
    job_.pace(kPace);
    for (int i = 0; i < case_.world; ++i) job_.start_pod(from_start ? plans_of(i) : "");
    if (!from_start) {
      until("the first steps", [&] { return job_.view().step >= 3; });
      // The first of two is what makes the second one's place come: it is planned last.
      for (const auto& each : std::views::reverse(struck_))
        if (each.pod < case_.world) job_.plan_fault(pod(each.pod), plans_of(each.pod));
    }
    if (case_.scene == Scene::kEnd) job_.pace(0ms);
    if (case_.scene == Scene::kJoin) job_.start_pod(plans_of(case_.world));
    if (case_.scene == Scene::kLeave) {
      pod(case_.world - 1).leaving = true;
      job_.wish();
    }
    if (case_.scene == Scene::kLeader && struck_.empty()) change_leader();
    until("the faults and their mending", [&] {
      for (Struck& each : struck_) attend(each);
      if (job_.view().phase == Phase::kFinished) return true;
      return std::ranges::all_of(struck_, [](const Struck& each) { return each.is_over; });
    });
    for (Struck& each : struck_) {
      if (each.at == MonoTime{}) throw Missed("the job ended before all faults had struck");
      if (!each.is_over) end(each);  // who was away at the end comes back to it
    }
    if (case_.scene != Scene::kEnd) until("everybody is back", [&] { return is_whole(); });
    // Who came in the place of a lost pod has survived nothing, and may not be there yet.
    const int began = case_.world + (case_.scene == Scene::kJoin ? 1 : 0);
    next_look_ = MonoTime{};  // a case may come here before its first look was due
    look_at_survivors();
    for (const auto& each : job_.pods)
      if (each->number < began && is_survivor(*each) && !survivors_.has_seen(*each))
        give_up("the worker of " + each->name + " was never seen");
    job_.pace(0ms);
    until("the end", [&] { return job_.view().phase == Phase::kFinished; });
    for (const auto& each : job_.pods) {
      if (each->pid <= 0) continue;
      const int status = job_.wait_exit(*each);
      if (status != 0) give_up(fmt::format("the agent of {} ended with {}", each->name, status));
    }
  }

 private:
  struct Struck {
    const Hit* hit;
    int pod;
    MonoTime at{};           // zero: not yet
    std::uint64_t step = 0;  // committed by then
    bool is_over = false;
  };

  [[noreturn]] void give_up(const std::string& why) const {
    const coordinator::View view = job_.view();
    std::string text = fmt::format("{}; {} at step {}, generation {}, {} members: {}", why,
                                   coordinator::name_of(view.phase), view.step, view.generation,
                                   view.members.size(), view.reason);
    throw std::runtime_error(text);
  }

  void until(const char* what, const std::function<bool()>& done) {
    bool is_slow = false;
    const bool came = job_.wait(
        [&] {
          const coordinator::View view = job_.view();
          if (view.phase == Phase::kFailed) give_up("the job failed: " + view.failure_message);
          look_at_survivors();
          if (!is_slow && view.step >= kLatest && fs::exists(job_.folder() / "pace")) {
            is_slow = true;
            job_.pace(kSlowPace);
          }
          return done();
        },
        kGiveUp);
    if (!came) give_up(fmt::format("waited in vain for: {}", what));
  }

  // No process of it was touched.
  bool is_survivor(const JobProcesses::Pod& pod) const {
    const bool is_hit = std::ranges::any_of(struck_, [&](const Struck& each) {
      return each.pod == pod.number && !is_of_disk(each.hit->fault) &&
             each.hit->fault != Fault::kRack;
    });
    return !is_hit && pod.pid > 0 && pod.wanted && !pod.leaving;
  }

  void look_at_survivors() {
    const MonoTime now = SystemClock().now();
    if (now < next_look_) return;
    next_look_ = now + kLookInterval;
    for (const auto& each : job_.pods) {
      if (!is_survivor(*each)) continue;
      if (const std::string wrong = survivors_.look_at(*each); !wrong.empty()) give_up(wrong);
    }
  }

  JobProcesses::Pod& pod(int number) { return *job_.pods.at(static_cast<std::size_t>(number)); }

  std::string plans_of(int pod) const {
    for (const Struck& each : struck_) {
      if (each.pod != pod) continue;
      // The checkpoint of the end is the one of the last step.
      const bool is_last = case_.scene == Scene::kEnd && each.hit->phase == "checkpoint";
      return fmt::format("{}:{}:{}", each.hit->phase, is_last ? std::to_string(kSteps) : "*",
                         action_of(each.hit->fault));
    }
    return "";
  }

  bool is_member(int number) {
    const coordinator::View view = job_.view();
    return std::ranges::any_of(view.members, [&](const coordinator::MemberView& member) {
      return member.pod_uid == pod(number).uid;
    });
  }

  void change_leader() {
    job_.stop_leading();
    job_.lead(2);
  }

  // Looks whether the fault has struck, and does what the world does about it.
  void attend(Struck& each) {
    if (each.is_over) return;
    JobProcesses::Pod& hit = pod(each.pod);
    const MonoTime now = SystemClock().now();
    if (each.at == MonoTime{}) {
      if (::access(hit.fault_file.c_str(), F_OK) == 0) return;
      each.at = now;
      each.step = job_.view().step;
      strike(each, hit);
    }
    const Duration since = now - each.at;
    const bool is_split = each.hit->fault == Fault::kSplit;
    const bool goes_on = is_split && job_.view().step > each.step + 3;  // without somebody
    const bool is_given_up = since > (is_split ? kLongSplit : kLongSilence) || goes_on ||
                             (since > 300ms && !is_member(each.pod));
    const bool is_held = is_of_network(each.hit->fault) || is_of_disk(each.hit->fault);
    if (is_held && since < kSettled) job_.signal_pod(hit, SIGCONT);
    if (is_of_disk(each.hit->fault)) {
      if (since > (each.hit->is_long ? kLongDiskTrouble : kDiskTrouble)) end(each);
      return;
    }
    if (each.hit->fault == Fault::kRack) {
      if (since > kRackTrouble) end(each);
      return;
    }
    const bool lasts = is_of_network(each.hit->fault) || each.hit->fault == Fault::kFreeze;
    if (!lasts || is_given_up) end(each);
  }

  void end(Struck& each) {
    each.is_over = true;
    if (each.hit->fault == Fault::kFreeze) job_.signal_pod(pod(each.pod), SIGCONT);
    if (each.hit->fault == Fault::kRack)
      for (int node = 0; node < case_.world; ++node) networks_->heal(node);
    else if (is_of_network(each.hit->fault))
      networks_->heal(each.pod % networks_->size());
    if (is_of_disk(each.hit->fault)) set_disk(each, DiskState::kWhole);
  }

  void set_disk(const Struck& each, DiskState state) {
    if (each.hit->everywhere)
      job_.disks().set_all(state);
    else
      job_.disks().set(each.pod % kDisks, state);
  }

  void strike(const Struck& each, JobProcesses::Pod& hit) {
    const int node = networks_ != nullptr ? each.pod % networks_->size() : 0;
    if (each.hit->fault == Fault::kCut) networks_->cut(node);
    if (each.hit->fault == Fault::kDeaf) networks_->cut_from_hub(node);
    if (each.hit->fault == Fault::kSplit) networks_->cut_from_nodes(node);
    if (each.hit->fault == Fault::kRack) networks_->split(case_.world / 2, case_.world);
    if (is_of_disk(each.hit->fault)) set_disk(each, state_of(each.hit->fault));
    if (each.hit->fault == Fault::kPod) {
      if (job_.wait_exit(hit) < 0) give_up("a killed pod did not end");
      hit.wanted = false;
      job_.wish();
    }
    if (case_.scene == Scene::kLeader && job_.view().generation > 0) change_leader();
    const bool nobody_else = std::ranges::none_of(
        job_.pods, [](const auto& other) { return other->wanted && other->pid > 0; });
    if (case_.replace || nobody_else || case_.scene == Scene::kPark) job_.start_pod();
  }

  // All that should be members are, or the job has ended meanwhile.
  bool is_whole() {
    const coordinator::View view = job_.view();
    if (view.phase == Phase::kFinished) return true;
    if (view.phase != Phase::kTraining) return false;
    std::size_t expected = 0;
    for (const auto& each : job_.pods) {
      if (!each->wanted || each->leaving) continue;
      ++expected;
      if (!is_member(each->number)) return false;
    }
    return view.members.size() == expected;
  }

  const KillCase& case_;
  JobProcesses& job_;
  NodeNetworks* const networks_;
  std::vector<Struck> struck_;
  Survivors survivors_;
  MonoTime next_look_{};
};

// What the coordinator says goes to a file beside the workers' logs, until the end of the scope.
class Logs {
 public:
  Logs() : before_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {}
  ~Logs() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  Logs(const Logs&) = delete;
  Logs& operator=(const Logs&) = delete;
  void go_into(const fs::path& file) const {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ::dup2(fd, STDERR_FILENO);
    ::close(fd);
  }

 private:
  const int before_;
};

}  // namespace

Player::Player(NodeNetworks* networks, bool disks) : networks_(networks), disks_(disks) {}

Player::~Player() {
  std::error_code ignored;
  for (const auto& [micro_batches, reference] : references_)
    fs::remove_all(reference.folder, ignored);
}

const Outcome& Player::reference(std::uint32_t micro_batches) {
  if (const auto known = references_.find(micro_batches); known != references_.end())
    return known->second.outcome;
  const Logs logs;
  const KillCase undisturbed{Scene::kStep, 1, {}, false, micro_batches};
  JobProcesses job(options(networks_, undisturbed));
  job.keep_files();
  logs.go_into(job.folder() / "coordinator.log");
  Story(undisturbed, job, networks_).tell();
  const Outcome outcome = outcome_of(job.folder());
  if (const std::string fault = compare(outcome, outcome, micro_batches); !fault.empty())
    throw std::runtime_error("the undisturbed run: " + fault);
  return references_.emplace(micro_batches, Reference{outcome, job.folder()}).first->second.outcome;
}

bool Player::can_play(const KillCase& one) const {
  return (disks_ || !breaks_disks(one)) &&
         (networks_ != nullptr ||
          std::ranges::none_of(one.hits, [](const Hit& hit) { return is_of_network(hit.fault); }));
}

Verdict Player::play(const KillCase& one) {
  const Outcome& undisturbed = reference(one.micro_batches);
  const SystemClock clock;
  const MonoTime begun = clock.now();
  Verdict verdict;
  for (int tries = 0; tries < kTries; ++tries)
    if (play_once(one, undisturbed, verdict)) break;
  verdict.seconds = std::chrono::duration<double>(clock.now() - begun).count();
  return verdict;
}

// False: a fault found no place to strike.
bool Player::play_once(const KillCase& one, const Outcome& undisturbed, Verdict& verdict) const {
  const Logs logs;
  JobProcesses job(options(networks_, one));
  logs.go_into(job.folder() / "coordinator.log");
  bool is_missed = false;
  try {
    Story(one, job, networks_).tell();
    verdict.fault = compare(outcome_of(job.folder()), undisturbed, one.micro_batches);
  } catch (const Missed& error) {
    verdict.fault = error.what();
    is_missed = true;
  } catch (const std::exception& error) {
    verdict.fault = error.what();
  }
  if (!verdict.ok() && !is_missed) {
    job.keep_files();
    verdict.files = job.folder();
  }
  if (std::ranges::any_of(one.hits, [](const Hit& hit) { return is_of_network(hit.fault); }))
    for (int node = 0; node < networks_->size(); ++node) networks_->heal(node);
  return !is_missed;
}

}  // namespace rubato::fault
