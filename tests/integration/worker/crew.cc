#include "tests/integration/worker/crew.h"

#include "worker/protocol/shares.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::worker {

namespace {
[[noreturn]] void give_up(const std::string& why) { throw std::runtime_error(why); }

std::vector<wire::MicroRange> held_of(const wire::WorkerStanding& standing) {
  std::vector<wire::MicroRange> ranges;
  for (const wire::Range& range : standing.held()) ranges.push_back({range.begin(), range.end()});
  return ranges;
}
}  // namespace

Crew::Crew(CrewConfig config)
    : config_(std::move(config)), generation_(config_.first_generation - 1) {}

Crew::~Crew() {
  for (auto& [number, worker] : workers_) {
    if (worker.is_alive()) {
      ::kill(worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
    }
    ::close(worker.fd);
  }
}

int Crew::spawn(const std::string& fault, const std::string& device) {
  const int number = static_cast<int>(workers_.size());
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) give_up("socketpair");
  CrewWorker& worker = workers_[number];
  worker.number = number;
  worker.log = fmt::format("{}/worker-{}.log", config_.folder, number);
  std::vector<std::string> environment{
      "RUBATO_AGENT_FD=3",
      "RUBATO_JOB=test/alone",
      "RUBATO_JOB_UID=job-1",
      fmt::format("RUBATO_POD_UID=pod-{}", config_.first_pod + number),
      "RUBATO_SLOT=0",
      "RUBATO_INCARNATION=1",
      "RUBATO_POD_IP=127.0.0.1",
      "RUBATO_SECRET_DIR=" + config_.secret_dir,
      "RUBATO_LEDGER=1",
      "RUBATO_FAULT_PHASE=" + fault,
      "RUBATO_FAULT_FILE=" + config_.fault_file};
  const std::string& kind = device.empty() ? config_.device : device;
  if (!kind.empty()) environment.push_back("RUBATO_DEVICE=" + kind);
  if (!config_.collective.empty()) environment.push_back("RUBATO_COLLECTIVE=" + config_.collective);
  worker.pid = ::fork();
  if (worker.pid == 0) {
    const int out = ::open(worker.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::dup2(pair[1], 3);
    if (pair[1] == 3) ::fcntl(3, F_SETFD, 0);
    std::vector<char*> words;
    for (std::string& text : environment) words.push_back(text.data());
    words.push_back(nullptr);
    char* arguments[] = {config_.program.data(), nullptr};
    ::execve(config_.program.c_str(), arguments, words.data());
    ::_exit(127);
  }
  ::close(pair[1]);
  worker.fd = pair[0];
  ::fcntl(worker.fd, F_SETFL, O_NONBLOCK);
  wire::WorkerCommand command;
  command.mutable_configure()->set_job("test/alone");
  command.mutable_configure()->set_training(config_.training);
  command.mutable_configure()->set_micro_batches(config_.micro_batches);
  command.mutable_configure()->set_fingerprint(fingerprint_);
  send(number, command);
  until("ready", [&] { return worker.standing.phase() == wire::WORKER_READY; });
  if (fingerprint_.empty()) fingerprint_ = worker.standing.fingerprint();
  if (fingerprint_ != worker.standing.fingerprint()) give_up("fingerprints differ");
  return number;
}

// ---- Reading and writing
// -------------------------------------------------------------------------

void Crew::send(int number, const wire::WorkerCommand& command) {
  const std::string body = command.SerializeAsString();
  std::string frame(4, '\0');
  for (unsigned i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (24 - 8 * i));
  frame += body;
  // A dead worker is noticed by its exit; the socket's buffer holds what a frozen one does not
  // read.
  [[maybe_unused]] const auto sent =
      ::send(workers_.at(number).fd, frame.data(), frame.size(), MSG_NOSIGNAL);
}

void Crew::read_events(int number) {
  CrewWorker& worker = workers_.at(number);
  char bytes[65536];
  for (;;) {
    const auto got = ::recv(worker.fd, bytes, sizeof bytes, 0);
    if (got <= 0) break;
    worker.incoming.append(bytes, static_cast<std::size_t>(got));
  }
  while (worker.incoming.size() >= 4) {
    std::size_t size = 0;
    for (unsigned i = 0; i < 4; ++i) {
      size = size << 8 | static_cast<unsigned char>(worker.incoming[i]);
    }
    if (worker.incoming.size() < 4 + size) break;
    wire::WorkerEvent event;
    if (!event.ParseFromString(worker.incoming.substr(4, size))) give_up("an event is garbage");
    worker.incoming.erase(0, 4 + size);
    note(worker, event);
  }
}

void Crew::note(CrewWorker& worker, const wire::WorkerEvent& event) {
  worker.standing = event.standing();
  if (event.has_caught_up()) worker.caught_up = true;
  if (event.has_committed()) {
    step_ = std::max(step_, event.standing().step());
    stall_max_ = std::max(stall_max_, event.committed().stall_seconds());
  }
  if (event.has_checkpoint_written()) {
    checkpoint_step_ = std::max(checkpoint_step_, event.checkpoint_written().step());
  }
  if (event.has_failure()) {
    worker.failures.push_back(event.failure().reason() + ": " + event.failure().message());
    if (event.failure().permanent()) give_up(worker.failures.back());
  }
}

void Crew::reap() {
  for (auto& [number, worker] : workers_) {
    int status = 0;
    if (worker.is_alive() && ::waitpid(worker.pid, &status, WNOHANG) == worker.pid) {
      worker.wait_status = status;
    }
  }
}

bool Crew::pump(int timeout_ms) {
  std::vector<pollfd> entries;
  std::vector<int> numbers;
  for (auto& [number, worker] : workers_) {
    if (!worker.is_alive()) continue;
    entries.push_back({worker.fd, POLLIN, 0});
    numbers.push_back(number);
  }
  const int ready = ::poll(entries.data(), entries.size(), timeout_ms);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) read_events(numbers[i]);
  }
  reap();
  return ready > 0;
}

bool Crew::member_died() const {
  return std::ranges::any_of(members_, [&](int n) { return !workers_.at(n).is_alive(); });
}

std::uint64_t Crew::rounds_applied() const {
  std::uint64_t most = 0;
  for (const auto& [number, worker] : workers_) most = std::max(most, worker.standing.seq());
  return most;
}

void Crew::until(const std::string& what, const std::function<bool()>& done) {
  const SystemClock clock;
  MonoTime deadline = clock.now() + kCrewPatience;
  std::uint64_t rounds = rounds_applied();
  while (!done()) {
    pump(20);
    if (!is_recovering_ && member_died()) recover();
    if (const std::uint64_t now = rounds_applied(); now > rounds) {
      rounds = now;
      deadline = clock.now() + kCrewPatience;
    }
    if (clock.now() < deadline) continue;
    std::string text = "waited in vain for: " + what;
    for (auto& [number, worker] : workers_) {
      text += fmt::format("\n  worker {}: alive {} phase {} {} g {} seq {} fenced {}", number,
                          worker.is_alive(), static_cast<int>(worker.standing.phase()),
                          worker.standing.phase_name(), worker.standing.generation(),
                          worker.standing.seq(), worker.standing.fenced_below());
    }
    give_up(text);
  }
}

void Crew::until_step(std::uint64_t step) {
  until(fmt::format("step {}", step), [&] { return step_ >= step; });
}

// ---- Generations
// ---------------------------------------------------------------------------------

wire::Form Crew::form_of(const std::vector<int>& members, wire::FormMode mode) const {
  wire::Form form;
  form.set_generation(generation_);
  form.set_mode(mode);
  for (const int number : members) {
    wire::Member& member = *form.add_members();
    *member.mutable_id() = workers_.at(number).standing.id();
    *member.mutable_address() = workers_.at(number).standing.listen();
  }
  // All are of one build and one machine.
  form.set_collective(workers_.at(members.front()).standing.collective());
  return form;
}

void Crew::start(const std::vector<int>& members, std::optional<std::uint64_t> checkpoint) {
  ++generation_;
  members_ = members;
  wire::WorkerCommand command;
  *command.mutable_form() = form_of(members, wire::FORM_START);
  command.mutable_form()->set_from_checkpoint(checkpoint.has_value());
  command.mutable_form()->set_checkpoint_step(checkpoint.value_or(0));
  for (const int number : members) send(number, command);
}

void Crew::recover(const std::vector<int>& without) {
  is_recovering_ = true;
  ++recoveries_;
  for (bool formed = false; !formed;) {
    std::erase_if(members_, [&](int n) {
      return !workers_.at(n).is_alive() || std::ranges::count(without, n) > 0;
    });
    if (members_.empty()) give_up("nobody with state is left");
    ++generation_;
    wire::WorkerCommand abort;
    abort.mutable_abort()->set_below(generation_);
    for (const int number : members_) send(number, abort);
    until("standings", [&] {
      return member_died() || std::ranges::all_of(members_, [&](int n) {
               return workers_.at(n).standing.fenced_below() >= generation_;
             });
    });
    if (member_died()) continue;
    const auto has_no_state = [&](int n) { return !workers_.at(n).standing.has_state(); };
    if (std::ranges::all_of(members_, has_no_state)) {  // aborted before the start was done
      is_recovering_ = false;
      return start(std::vector<int>(members_));
    }
    std::erase_if(members_, has_no_state);
    std::uint64_t base = 0;
    for (const int n : members_) base = std::max(base, workers_.at(n).standing.seq());
    wire::WorkerCommand command;
    *command.mutable_form() = form_of(members_, wire::FORM_RECOVER);
    wire::Form& form = *command.mutable_form();
    form.set_base_seq(base);
    std::vector<std::vector<wire::MicroRange>> held;
    for (const int n : members_) {
      const wire::WorkerStanding& standing = workers_.at(n).standing;
      if (standing.seq() == base) {
        if (standing.has_last()) *form.mutable_decision() = standing.last();
        held.push_back(held_of(standing));
      } else {
        if (standing.seq() + 1 != base || !standing.reduced()) give_up("cannot be levelled");
        held.emplace_back();
      }
    }
    for (const auto& ranges : wire::salvage_shares(held, config_.micro_batches)) {
      wire::Share& share = *form.add_shares();
      for (const wire::MicroRange& range : ranges) {
        wire::Range& entry = *share.add_ranges();
        entry.set_begin(range.begin);
        entry.set_end(range.end);
      }
    }
    for (const int number : members_) send(number, command);
    formed = true;
  }
  is_recovering_ = false;
}

bool Crew::switch_to(const std::vector<int>& next) {
  ++generation_;
  const std::uint64_t wanted = generation_;
  wire::WorkerCommand command;
  *command.mutable_form() = form_of(next, wire::FORM_PLANNED);
  std::vector<int> all = members_;
  for (const int n : next) {
    if (std::ranges::count(all, n) == 0) all.push_back(n);
  }
  stall_max_ = 0;
  for (const int number : all) send(number, command);
  const auto newcomer_died = [&] {
    return std::ranges::any_of(next, [&](int n) { return !workers_.at(n).is_alive(); });
  };
  until("the switch", [&] {
    return generation_ != wanted || newcomer_died() || std::ranges::all_of(next, [&](int n) {
             return workers_.at(n).standing.generation() == wanted;
           });
  });
  if (generation_ == wanted && newcomer_died()) recover();
  if (generation_ != wanted) return false;
  members_ = next;
  return true;
}

bool Crew::join(int newcomer, int donor) {
  wire::WorkerCommand command;
  wire::Follow& follow = *command.mutable_follow();
  follow.set_generation(generation_);
  *follow.mutable_donor() = workers_.at(donor).standing.id();
  *follow.mutable_donor_address() = workers_.at(donor).standing.listen();
  CrewWorker& worker = workers_.at(newcomer);
  worker.caught_up = false;
  bool began = false;
  const std::uint64_t generation = generation_;
  send(newcomer, command);
  until("catching up", [&] {
    began = began || worker.standing.phase() == wire::WORKER_FOLLOWING;
    const bool is_cut = began && worker.standing.phase() != wire::WORKER_FOLLOWING;
    return worker.caught_up || is_cut || !worker.is_alive() || generation_ != generation;
  });
  if (generation_ != generation) {  // the donor's generation is gone: so is what it sends
    wire::WorkerCommand abort;
    abort.mutable_abort()->set_below(generation_);
    send(newcomer, abort);
    until("the follower lets go",
          [&] { return !worker.is_alive() || worker.standing.fenced_below() >= generation_; });
    return false;
  }
  if (!worker.caught_up) return false;
  std::vector<int> next = members_;
  next.push_back(newcomer);
  return switch_to(next);
}

void Crew::leave(int leaver) {
  std::vector<int> next = members_;
  std::erase(next, leaver);
  if (!switch_to(next)) return;
  until("the leaver stops",
        [&] { return workers_.at(leaver).standing.phase() == wire::WORKER_STOPPED; });
  retire(leaver);
}

void Crew::request(bool checkpoint, bool stop) {
  wire::WorkerCommand command;
  command.mutable_request()->set_checkpoint(checkpoint);
  command.mutable_request()->set_stop(stop);
  command.mutable_request()->set_reason("test");
  for (const int number : members_) send(number, command);
}

void Crew::signal(int number, int signal) {
  CrewWorker& worker = workers_.at(number);
  ::kill(worker.pid, signal);
  worker.is_stopped = signal == SIGSTOP;
}

void Crew::retire(int number) {
  wire::WorkerCommand command;
  command.mutable_retire()->set_reason("test");
  std::erase(members_, number);
  send(number, command);
  CrewWorker& worker = workers_.at(number);
  until("retired", [&] { return !worker.is_alive(); });
  if (!WIFEXITED(*worker.wait_status) || WEXITSTATUS(*worker.wait_status) != 0) {
    give_up(fmt::format("worker {} ended with wait status {}", number, *worker.wait_status));
  }
}

void Crew::finish() {
  until("the end", [&] {
    return std::ranges::all_of(
               members_,
               [&](int n) { return workers_.at(n).standing.phase() == wire::WORKER_FINISHED; }) &&
           checkpoint_step_ >= workers_.at(members_.front()).standing.step();
  });
  for (const int number : std::vector<int>(members_)) retire(number);
}

}  // namespace rubato::worker
