// Crew: rubato-worker processes and a small coordinator for them, in one thread, without an agent,
// an operator or Kubernetes. It does what docs/protocol.md asks of the coordinator, by hand, so
// that a test can choose when.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::worker {

// How long a wait goes on without a round applied anywhere; a test that needs it has failed. Rounds
// are bounded by the job's steps, and their time by the machine: an emulated device takes seconds.
constexpr auto kCrewPatience = 60s;

struct CrewConfig {
  std::string program;  // rubato-worker
  std::string folder;   // logs go here
  std::string secret_dir;
  std::string training;    // spec.training
  std::string fault_file;  // RUBATO_FAULT_FILE
  std::string device;      // RUBATO_DEVICE; empty: the CPU
  std::string collective;  // RUBATO_COLLECTIVE; empty: links
  std::uint32_t micro_batches = 0;
  // A crew that goes on where another ended: generations never go back, pods are never used again.
  std::uint64_t first_generation = 1;
  int first_pod = 0;
};

struct CrewWorker {
  int number = 0;
  pid_t pid = -1;
  int fd = -1;
  std::string log;  // its stdout
  std::string incoming;
  wire::WorkerStanding standing;
  std::optional<int> wait_status;  // set once it has ended
  bool is_stopped = false;         // by SIGSTOP, as far as we know
  bool caught_up = false;
  std::vector<std::string> failures;
  bool is_alive() const { return !wait_status; }
};

class Crew {
 public:
  explicit Crew(CrewConfig config);
  ~Crew();  // kills, by pid, what still runs
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts a process and configures it; `fault` is RUBATO_FAULT_PHASE, `device` RUBATO_DEVICE where
  // it is not the crew's. Its number.
  int spawn(const std::string& fault = "", const std::string& device = "");
  // First generation: from the seed, or from a checkpoint.
  void start(const std::vector<int>& members, std::optional<std::uint64_t> checkpoint = {});
  // Planned changes: the newcomer follows `donor`, then all switch; or `leaver` goes.
  // False when somebody died meanwhile and the newcomer is not a member: try again.
  bool join(int newcomer, int donor);
  void leave(int leaver);
  // Abort, standings, Form{RECOVER} with those members that are alive and not in `without`.
  void recover(const std::vector<int>& without = {});
  void request(bool checkpoint, bool stop);
  void signal(int number, int signal);
  void retire(int number);

  // Reads events until `done`, recovering by itself whenever a member dies. Throws
  // (std::runtime_error) when patience ends or a worker reports a permanent failure.
  void until(const std::string& what, const std::function<bool()>& done);
  void until_step(std::uint64_t step);
  // All members say FINISHED and the last checkpoint is written; then all are retired and their
  // exit statuses checked.
  void finish();

  CrewWorker& worker(int number) { return workers_.at(number); }
  const std::vector<int>& members() const { return members_; }
  std::uint64_t step() const { return step_; }
  std::uint64_t generation() const { return generation_; }
  std::uint64_t checkpoint_step() const { return checkpoint_step_; }
  int recoveries() const { return recoveries_; }
  double stall_max() const { return stall_max_; }  // seconds, of the last planned change

 private:
  void send(int number, const wire::WorkerCommand& command);
  void read_events(int number);
  void note(CrewWorker& worker, const wire::WorkerEvent& event);
  void reap();
  bool pump(int timeout_ms);
  wire::Form form_of(const std::vector<int>& members, wire::FormMode mode) const;
  bool switch_to(const std::vector<int>& next);
  bool member_died() const;
  std::uint64_t rounds_applied() const;  // by the worker that is furthest

  CrewConfig config_;
  std::map<int, CrewWorker> workers_;
  std::vector<int> members_;
  std::uint64_t generation_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t checkpoint_step_ = 0;
  int recoveries_ = 0;
  bool is_recovering_ = false;
  double stall_max_ = 0;
  std::string fingerprint_;
};

}  // namespace rubato::worker
