// SimWorker: one real worker, alone in its generation, in virtual time: StepEngine, ModelReplica
// and checkpoints as they ship, on simulated disks. A step takes kSimStep.
#pragma once

#include "common/testing/sim_disk.h"
#include "common/testing/sim_executor.h"
#include "tests/unit/worker/support/troubled_files.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/step_export.h"
#include "worker/data/token_file.h"
#include "worker/model/numerics.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/model_replica.h"
#include "worker/step/step_engine.h"
#include "worker/step/training_config.h"
#include "worker/testing/deferred_device.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace rubato::worker {

constexpr auto kSimStep = 100ms;

// Nobody comes, and nobody can be reached.
class NoNetwork : public LinkNetwork {
 public:
  explicit NoNetwork(Executor& executor)
      : executor_(executor), changed_(executor.make_condition()) {}
  std::uint16_t port() const override { return 1; }
  Result<std::unique_ptr<Arrival>> accept(MonoTime deadline) override {
    std::unique_lock lock(mutex_);
    changed_->wait_until(lock, deadline, [&] { return is_closed_; });
    return Error(is_closed_ ? Code::kCancelled : Code::kTimeout, "nobody comes");
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_->notify_all();
  }
  Result<std::unique_ptr<Link>> dial(const std::string&, std::uint16_t, MonoTime,
                                     std::stop_token) override {
    return Error(Code::kUnavailable, "nobody is there");
  }

 private:
  Executor& executor_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  bool is_closed_ = false;
};

// A ring of one.
class AloneCommunicator : public Communicator {
 public:
  AloneCommunicator(std::uint64_t generation, Device& device)
      : generation_(generation), device_(device) {}
  std::uint64_t generation() const override { return generation_; }
  std::uint32_t rank() const override { return 0; }
  std::uint32_t size() const override { return 1; }
  Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out, HopSums*) override {
    if (is_aborted_) return Error(Code::kCancelled, "aborted");
    device_.copy(stream, out, in);
    return stream.synchronize();
  }
  Result<std::vector<std::string>> gather(std::string_view mine) override {
    if (is_aborted_) return Error(Code::kCancelled, "aborted");
    return std::vector<std::string>{std::string(mine)};
  }
  void vote_by_tree() override {}
  void abort() override { is_aborted_ = true; }
  std::optional<LinkFault> fault() const override { return std::nullopt; }

 private:
  const std::uint64_t generation_;
  Device& device_;
  bool is_aborted_ = false;
};

class AloneFactory : public CommunicatorFactory {
 public:
  explicit AloneFactory(Device& device) : device_(device) {}
  Result<std::unique_ptr<Communicator>> create(const Membership& membership, MonoTime) override {
    return std::unique_ptr<Communicator>(
        std::make_unique<AloneCommunicator>(membership.generation, device_));
  }
  void fence(std::uint64_t) override {}

 private:
  Device& device_;
};

struct SimJob {
  std::string uid = "uid-a";
  std::uint64_t steps = 8;
  int checkpoint_every = 2;
  int keep = 3;
  int give_up_after = 1800;
  double learning_rate = 0.003;
  std::string pinned = {};
  std::string device = "cpu";  // this: what unit tests compute on

  std::string training() const {
    return fmt::format(
        R"({{"model":{{"layers":1,"hidden":16,"heads":2,"vocab":61}},"data":{{"path":"/data/t.bin"}},)"
        R"("batch":{{"global":4,"micro":2,"sequenceLength":8}},"stop":{{"steps":{}}},)"
        R"("optimizer":{{"learningRate":{},"schedule":{{"decaySteps":8}}}},)"
        R"("checkpoint":{{"every":{},"keep":{},"path":"/ckpt","giveUpAfter":{}}}}})",
        steps, learning_rate, checkpoint_every, keep, give_up_after);
  }
};

// The disks of a test.
struct SimStorage {
  explicit SimStorage(testing::SimExecutor& sim) : data(sim, 11), checkpoints(sim, 12) {}
  std::unique_ptr<testing::SimDisk> open(testing::SimProcess& process) {
    auto disk = std::make_unique<testing::SimDisk>(process, process.name());
    disk->mount("/data", data);
    disk->mount("/ckpt", checkpoints);
    return disk;
  }
  static void write_tokens(FileSystem& files, std::int32_t salt = 0) {
    auto writer = TokenFileWriter::create(files, "/data/t.bin", 61).value();
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 900; ++i) tokens.push_back((i * i + i / 7 + salt) % 61);
    CHECK(writer.append(tokens).ok() && writer.finish().ok());
  }
  testing::SimVolume data;
  testing::SimVolume checkpoints;
};

inline Result<std::unique_ptr<Device>> open_sim_device(const DeviceSpec& spec) {
  return spec.kind == DeviceSpec().kind ? open_test_device(spec) : open_any_device(spec);
}

class SimWorker {
 public:
  SimWorker(testing::SimExecutor& sim, SimStorage& storage, const SimJob& job)
      : sim_(sim),
        process_(sim.process("worker")),
        disk_(storage.open(process_)),
        files_(*disk_),
        hub_(process_, std::make_unique<NoNetwork>(process_),
             {.job_uid = job.uid, .self = {"pod", 0, 1}}) {
    EngineParts parts{
        .executor = process_,
        .files = files_,
        .self = {"pod", 0, 1},
        .host = "host",
        .hub = hub_,
        .configure = [this, job](const std::string& training,
                                 const std::string& pinned) -> Result<ConfiguredJob> {
          TRY(const TrainingConfig config, parse_training(training));
          ConfiguredJob made;
          TRY(made.replica, make_model_replica(config, {.files = files_,
                                                        .job_uid = job.uid,
                                                        .pinned = pinned,
                                                        .numerics = numerics_version_of(pinned),
                                                        .device = job.device,
                                                        .open_device = open_sim_device}));
          made.plan.stop_steps = config.stop_steps;
          made.plan.checkpoint_every = config.checkpoint_every;
          made.plan.checkpoint_give_up = std::chrono::seconds(config.checkpoint_give_up_seconds);
          made.plan.has_checkpoints = true;
          made.plan.export_path = "/ckpt/steps.bin";
          return made;
        },
        .make_factory = [](Device& device) { return std::make_unique<AloneFactory>(device); },
        .emit =
            [this](const wire::WorkerEvent& event) {
              if (event.standing().micro_done() != standing_.micro_done()) note_life();
              standing_ = event.standing();
              events_.push_back(event);
            },
        .print =
            [this](const std::string& line) {
              lines_.push_back(line);
              times_.push_back(sim_.now());
            },
        .cpu = "sim",
        .reach =
            [this](std::string_view phase, std::uint64_t) {
              if (phase == "compute") process_.sleep_for(kSimStep);
            },
    };
    engine_ = std::make_unique<StepEngine>(std::move(parts));
    run_ = process_.spawn("step", [this](const std::stop_token&) { status_ = engine_->run(); });
    beat_ = process_.spawn("beat", [this](const std::stop_token& stop) {
      while (process_.sleep_for(250ms, stop)) engine_->beat();
    });
    configure(job);
    sim_.settle();
  }
  ~SimWorker() {
    engine_->leave("test ends");
    beat_ = Task();
    run_ = Task();
  }

  void configure(const SimJob& job) {
    wire::WorkerCommand command;
    command.mutable_configure()->set_micro_batches(2);
    command.mutable_configure()->set_training(job.training());
    command.mutable_configure()->set_fingerprint(job.pinned);
    engine_->command(command);
  }
  // From a checkpoint, or from the seed.
  void start(std::optional<std::uint64_t> checkpoint = std::nullopt) {
    wire::WorkerCommand command;
    wire::Form& form = *command.mutable_form();
    form.set_generation(++generation_);
    form.set_mode(wire::FORM_START);
    form.set_from_checkpoint(checkpoint.has_value());
    form.set_checkpoint_step(checkpoint.value_or(0));
    *form.add_members()->mutable_id() = standing_.id();
    engine_->command(command);
  }
  void look(std::uint64_t number) {
    wire::WorkerCommand command;
    command.mutable_look()->set_number(number);
    engine_->command(command);
  }
  void ask_to_stop() {
    wire::WorkerCommand command;
    command.mutable_request()->set_checkpoint(true);
    command.mutable_request()->set_stop(true);
    engine_->command(command);
  }
  void ask_to_save() {
    wire::WorkerCommand command;
    command.mutable_request()->set_checkpoint(true);
    engine_->command(command);
  }
  bool until_phase(wire::WorkerPhase phase, Duration limit = 10min) {
    return sim_.run_until([&] { return standing_.phase() == phase; }, limit);
  }
  bool until_failure(const std::string& reason, Duration limit = 10min) {
    return sim_.run_until([&] { return failure(reason) != nullptr; }, limit);
  }
  const wire::Failure* failure(const std::string& reason) const {
    for (const wire::WorkerEvent& event : events_)
      if (event.has_failure() && event.failure().reason() == reason) return &event.failure();
    return nullptr;
  }
  wire::Failure last_failure() const {
    wire::Failure last;
    for (const wire::WorkerEvent& event : events_)
      if (event.has_failure()) last = event.failure();
    return last;
  }
  std::vector<wire::CheckpointDamaged> damaged() const {
    std::vector<wire::CheckpointDamaged> found;
    for (const wire::WorkerEvent& event : events_)
      if (event.has_checkpoint_damaged()) found.push_back(event.checkpoint_damaged());
    return found;
  }
  std::vector<std::string> lines(const std::string& with) const {
    std::vector<std::string> found;
    for (const std::string& line : lines_)
      if (line.find(with) != std::string::npos) found.push_back(line);
    return found;
  }
  // The longest time between two committed steps.
  Duration longest_step() const {
    Duration longest{0};
    std::optional<MonoTime> before;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (!lines_[i].starts_with("step=")) continue;
      if (before) longest = std::max<Duration>(longest, times_[i] - *before);
      before = times_[i];
    }
    return longest;
  }
  Duration longest_silence() const { return longest_silence_; }  // without a sign of life
  const wire::WorkerStanding& standing() const { return standing_; }
  std::optional<int> status() const { return status_; }  // with which its process would have ended
  TroubledFiles& files() { return files_; }

 private:
  void note_life() {
    if (last_life_ != MonoTime{})
      longest_silence_ = std::max<Duration>(longest_silence_, sim_.now() - last_life_);
    last_life_ = sim_.now();
  }

  testing::SimExecutor& sim_;
  testing::SimProcess& process_;
  std::unique_ptr<testing::SimDisk> disk_;
  TroubledFiles files_;
  LinkHub hub_;
  wire::WorkerStanding standing_;
  std::vector<wire::WorkerEvent> events_;
  std::vector<std::string> lines_;
  std::vector<MonoTime> times_;
  MonoTime last_life_{};
  Duration longest_silence_{0};
  std::uint64_t generation_ = 0;
  std::optional<int> status_;
  std::unique_ptr<StepEngine> engine_;
  Task run_;
  Task beat_;
};

}  // namespace rubato::worker
