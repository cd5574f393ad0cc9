// Program: the person's process of one rank, in a process group of its own. It dies with us. When
// its first process ends, so do the others that it started, and then its end is told. Those of the
// group have their time when they were told to end: the first may be a shell, which dies at once.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/script/progress_log.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr auto kExecMost = 1s;  // beyond, a program counts as started; that it was not, ends it
constexpr auto kSpareReadyMost = 2min;  // from its start; beyond, it hangs, or is no interpreter

struct ProgramEnd {
  int exit_code = 0;  // -1: ended by `signal`
  int signal = 0;
};
// "exited with status 1", "was ended by signal 9 (Killed)".
std::string to_text(const ProgramEnd& end);

class Program {
 public:
  virtual ~Program() = default;
  // kNotFound: there is no such program, or it may not be started. `variables` come before those of
  // our own environment.
  virtual Status start(const std::vector<std::string>& command,
                       const std::map<std::string, std::string>& variables) = 0;
  // The program will be started again some time: may have something at hand that makes it sooner.
  // To be called again and again, which is cheap.
  virtual void prepare(MonoTime now, const std::vector<std::string>& command,
                       const std::map<std::string, std::string>& variables) = 0;
  // To its group; nothing where none runs. After SIGTERM the group is left to end by itself, until
  // SIGKILL.
  virtual void signal(int number) = 0;
  // Once, after it ended, and nothing that it started lives any more. Never waits.
  virtual std::optional<ProgramEnd> take_end() = 0;
};

// Prepared for a script of Python, it has a spare interpreter that has imported torch (spare.py)
// and takes the script over; where that is not there, or not ready, the program starts by itself.
// After two spares that ended before they were used, or one that was not ready within
// kSpareReadyMost and was killed, there are no others.
// Orphans of our process come to it (PR_SET_CHILD_SUBREAPER), and all its children but the spare
// are the program's.
class PosixProgram : public Program {
 public:
  // What it prints goes through `log`, which outlives it; null: to our own output.
  explicit PosixProgram(ProgressLog* log = nullptr);
  ~PosixProgram() override;  // kills it
  PosixProgram(const PosixProgram&) = delete;
  PosixProgram& operator=(const PosixProgram&) = delete;
  // By the thread that lives as long as this process: the kernel ends the program with it.
  Status start(const std::vector<std::string>& command,
               const std::map<std::string, std::string>& variables) override;
  void prepare(MonoTime now, const std::vector<std::string>& command,
               const std::map<std::string, std::string>& variables) override;
  void signal(int number) override;
  std::optional<ProgramEnd> take_end() override;
  bool has_spare();  // and it is ready

 private:
  struct Spare {
    int pid = -1;
    int line = -1;  // our end of its socket
    MonoTime since{};
    bool is_ready = false;
    std::vector<std::string> command;
    std::string threads;  // its OMP_NUM_THREADS, which is read when torch is imported
  };
  bool hand_over(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& variables);
  void end_spare();
  void reap_orphans();
  bool leaves_some();
  int output() const { return log_ == nullptr ? -1 : log_->input(); }

  ProgressLog* log_;
  int pid_ = -1;          // of its first process, and of its group
  bool is_told_ = false;  // to end, and not killed
  Spare spare_;
  std::set<int> spares_ending_;  // killed, and not gone yet
  int spares_lost_ = 0;          // before they were used
};

// A TCP port that nobody else of this machine gets while this lives. Nobody answers there: who
// dials is refused, and dials again.
class HeldPort {
 public:
  static Result<HeldPort> any();
  HeldPort() = default;
  HeldPort(HeldPort&& other) noexcept;
  HeldPort& operator=(HeldPort&& other) noexcept;
  ~HeldPort();
  std::uint16_t number() const { return number_; }

 private:
  int fd_ = -1;
  std::uint16_t number_ = 0;
};

}  // namespace rubato::worker
