// TestWorker: a StepEngine with a fake replica, on a thread of its own, and what it has said. Gate:
// holds it up in its micro-batches.
#pragma once

#include "tests/unit/worker/collective/fleet.h"
#include "tests/unit/worker/step/fake_replica.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/step_engine.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {

// Counts how often the device's own way of adding was found wrong again.
class CountingFactory : public TcpCommunicatorFactory {
 public:
  CountingFactory(LinkHub& hub, Device& device, std::atomic<int>& distrusts)
      : TcpCommunicatorFactory(hub, device), distrusts_(distrusts) {}
  void note_wrong_sums() override { ++distrusts_; }

 private:
  std::atomic<int>& distrusts_;
};

class TestWorker {
 public:
  TestWorker(int number, const std::string& secret_dir, std::uint64_t steps,
             FakeTroubles troubles) {
    const WorkerName self{"pod-" + std::to_string(number), 0, 1};
    hub_ = open_hub(executor_, "job-1", self, secret_dir);
    EngineParts parts{
        .executor = executor_,
        .files = files_,
        .self = self,
        .host = "127.0.0.1",
        .hub = *hub_,
        .configure = [steps, troubles](const std::string&,
                                       const std::string&) -> Result<ConfiguredJob> {
          ConfiguredJob job;
          job.plan.stop_steps = steps;
          job.plan.evaluate_every = 5;
          job.plan.checkpoint_every = troubles.checkpoint_every;
          job.plan.has_checkpoints = troubles.checkpoint_every > 0;
          job.replica = std::make_unique<FakeReplica>(troubles);
          return job;
        },
        .make_factory =
            [this](Device& device) {
              return std::make_unique<CountingFactory>(*hub_, device, distrusts_);
            },
        .emit =
            [this](const wire::WorkerEvent& event) {
              const std::lock_guard lock(mutex_);
              standing_ = event.standing();
              if (event.has_failure()) failure_ = event.failure();
              if (event.has_suspect()) suspicion_ = event.suspect().why();
              if (event.has_caught_up()) caught_up_ = true;
              if (event.has_checkpoint_written())
                checkpoints_.push_back(event.checkpoint_written().step());
              const wire::CommitRecord& record = event.committed().record();
              if (record.outcome() == wire::OUTCOME_DIVERGED) {
                diverged_.assign(record.diverged().begin(), record.diverged().end());
                difference_ = event.committed().difference();
              }
              changed_.notify_all();
            },
        .print =
            [this](const std::string& line) {
              const std::lock_guard lock(mutex_);
              lines_.push_back(line);
            },
        .cpu = "test",
    };
    engine_ = std::make_unique<StepEngine>(std::move(parts));
    thread_ = std::thread([this] {
      const int status = engine_->run();
      const std::lock_guard lock(mutex_);
      status_ = status;
      changed_.notify_all();
    });
    wire::WorkerCommand command;
    command.mutable_configure()->set_micro_batches(kFakeMicroBatches);
    engine_->command(command);
    EXPECT_TRUE(
        until([](const wire::WorkerStanding& s) { return s.phase() == wire::WORKER_READY; }));
  }
  ~TestWorker() {
    engine_->leave("test ends");
    thread_.join();
  }

  template <class Predicate>
  bool until(Predicate done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return done(standing_); });
  }
  bool until_phase(wire::WorkerPhase phase) {
    return until([&](const wire::WorkerStanding& s) { return s.phase() == phase; });
  }
  bool until_caught_up() {
    return until([&](const wire::WorkerStanding& s) { return caught_up_ && s.caught_up(); });
  }
  // Until its process would end; with which status.
  std::optional<int> until_ended() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return status_.has_value(); });
    return status_;
  }
  wire::WorkerStanding standing() {
    const std::lock_guard lock(mutex_);
    return standing_;
  }
  wire::Failure failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Until it has said that it suspects a peer; why.
  std::string until_suspicion() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return !suspicion_.empty(); });
    return suspicion_;
  }
  // Until it has said that a round was refused; the ranks that it named.
  std::vector<std::uint32_t> until_diverged() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return failure_.reason() == "Diverged"; });
    return diverged_;
  }
  std::string difference() {  // as the refused round named it
    const std::lock_guard lock(mutex_);
    return difference_;
  }
  wire::Failure until_failure() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return !failure_.reason().empty(); });
    return failure_;
  }
  std::vector<std::uint64_t> checkpoints() {  // steps of those that were written
    const std::lock_guard lock(mutex_);
    return checkpoints_;
  }
  std::vector<std::string> lines(const std::string& with) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (line.find(with) != std::string::npos) found.push_back(line);
    }
    return found;
  }
  int distrusts() const { return distrusts_; }
  StepEngine& engine() { return *engine_; }

 private:
  ThreadExecutor executor_;
  PosixFileSystem files_;
  std::unique_ptr<LinkHub> hub_;
  std::atomic<int> distrusts_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  wire::WorkerStanding standing_;
  wire::Failure failure_;
  std::string suspicion_;
  bool caught_up_ = false;
  std::vector<std::uint32_t> diverged_;
  std::string difference_;
  std::vector<std::uint64_t> checkpoints_;
  std::vector<std::string> lines_;
  std::optional<int> status_;
  std::unique_ptr<StepEngine> engine_;
  std::thread thread_;
};

// Where a worker waits in a micro-batch until the test lets it go. Shared: it outlives both.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }
  void pass_slowly() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 2ms, [&] { return is_open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

}  // namespace rubato::worker
