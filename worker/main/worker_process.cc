#include "worker/main/worker_process.h"

#include "common/log.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/model/numerics.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/step_engine.h"
#include "worker/step/training_config.h"

#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

std::unique_ptr<CommunicatorFactory> make_tcp_factory(LinkHub& hub, Device& device) {
  return std::make_unique<TcpCommunicatorFactory>(hub, device);
}

std::unique_ptr<CommunicatorFactory> make_device_factory(LinkHub& hub, Device& device) {
  const auto own = device.collectives();
  if (!own.ok()) LOG_WARNING("collective", "gradients go over links: {}", own.error().what());
  return std::make_unique<TcpCommunicatorFactory>(hub, device, own.value_or(nullptr));
}

struct WorkerProcess::Impl {
  explicit Impl(WorkerParts parts);
  Result<ConfiguredJob> configure(const std::string& training, const std::string& pinned) const;

  Executor& executor;
  FileSystem& files;
  const decltype(WorkerParts::make_replica) make_replica;
  const std::string job_uid;
  const WorkerName self;
  const std::string device;
  const decltype(Hooks::open_ledger) open_ledger;
  const decltype(Hooks::open_device) open_device;
  LinkHub hub;
  StepEngine engine;
};

WorkerProcess::Impl::Impl(WorkerParts parts)
    : executor(parts.executor),
      files(parts.files),
      make_replica(std::move(parts.make_replica)),
      job_uid(parts.job_uid),
      self(parts.self),
      device(std::move(parts.device)),
      open_ledger(std::move(parts.hooks.open_ledger)),
      open_device(std::move(parts.hooks.open_device)),
      hub(executor, std::move(parts.network), {.job_uid = parts.job_uid, .self = self}),
      engine({
          .executor = executor,
          .files = files,
          .self = self,
          .host = parts.host,
          .hub = hub,
          .configure = [this](const std::string& training,
                              const std::string& pinned) { return configure(training, pinned); },
          .make_factory = [this, make = std::move(parts.make_factory)](
                              Device& opened) { return make(hub, opened); },
          .emit = [send = std::move(parts.send)](
                      const wire::WorkerEvent& event) { send(event.SerializeAsString()); },
          .print = std::move(parts.print),
          .cpu = std::move(parts.cpu),
          .reach = std::move(parts.hooks.reach),
      }) {}

Result<ConfiguredJob> WorkerProcess::Impl::configure(const std::string& training,
                                                     const std::string& pinned) const {
  TRY(const TrainingConfig config, parse_training(training));
  ConfiguredJob job;
  if (!config.checkpoint_path.empty() && open_ledger) {
    TRY(job.ledger,
        open_ledger(files, fmt::format("{}/ledger/{}-{}-{}.jsonl", config.checkpoint_path,
                                       self.pod_uid, self.slot, self.incarnation)));
  }
  ReplicaOptions options{.files = files};
  options.job_uid = job_uid;
  options.pinned = pinned;
  options.numerics = numerics_version_of(pinned);
  options.training = training;
  options.ledger = job.ledger.get();
  options.device = device;
  options.open_device = open_device;
  TRY(job.replica, make_replica(config, options));
  job.plan.stop_steps = config.stop_steps;
  job.plan.evaluate_every = config.evaluate_every;
  job.plan.checkpoint_every = config.checkpoint_every;
  job.plan.has_checkpoints = !config.checkpoint_path.empty();
  job.plan.checkpoint_give_up = std::chrono::seconds(config.checkpoint_give_up_seconds);
  if (job.plan.has_checkpoints) job.plan.export_path = config.checkpoint_path + "/steps.bin";
  return job;
}

WorkerProcess::WorkerProcess(WorkerParts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
WorkerProcess::~WorkerProcess() = default;
void WorkerProcess::command(const std::string& body) {
  wire::WorkerCommand command;
  if (command.ParseFromString(body)) impl_->engine.command(command);
}
void WorkerProcess::beat() { impl_->engine.beat(); }
int WorkerProcess::run() { return impl_->engine.run(); }
void WorkerProcess::leave(const std::string& reason) { impl_->engine.leave(reason); }

}  // namespace rubato::worker
