#include "worker/pytorch/lone_coordinator.h"

#include "common/log.h"

#include <condition_variable>

namespace rubato::worker {

namespace {

class LoneNetwork : public LinkNetwork {
 public:
  std::uint16_t port() const override { return 0; }
  Result<std::unique_ptr<Arrival>> accept(MonoTime deadline) override {
    std::unique_lock lock(mutex_);
    closed_.wait_until(lock, deadline, [&] { return is_closed_; });
    return is_closed_ ? Error(Code::kCancelled, "closed") : Error(Code::kTimeout, "nobody came");
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    closed_.notify_all();
  }
  Result<std::unique_ptr<Link>> dial(const std::string& host, std::uint16_t, MonoTime,
                                     std::stop_token) override {
    return Error(Code::kUnavailable, "this worker is alone; it cannot reach " + host);
  }

 private:
  std::mutex mutex_;
  std::condition_variable closed_;
  bool is_closed_ = false;
};

// The engine holds its state and tries again, the last checkpoint until `giveUpAfter`; it has
// logged why.
bool is_tried_again(const wire::Failure& failure) {
  return failure.reason() == "CheckpointFailed" && failure.scope() == wire::FAILURE_SCOPE_ATTEMPT;
}

}  // namespace

std::unique_ptr<LinkNetwork> make_lone_network() { return std::make_unique<LoneNetwork>(); }

LoneCoordinator::LoneCoordinator(std::string training, std::uint32_t micro_batches,
                                 std::function<void(const std::string& command)> send)
    : training_(std::move(training)), micro_batches_(micro_batches), send_(std::move(send)) {}

void LoneCoordinator::start() {
  wire::WorkerCommand command;
  wire::Configure& configure = *command.mutable_configure();
  configure.set_job("alone");
  configure.set_training(training_);
  configure.set_micro_batches(micro_batches_);
  send(command);
}

void LoneCoordinator::hear(const wire::WorkerEvent& event) {
  const wire::WorkerStanding& standing = event.standing();
  const std::lock_guard lock(mutex_);
  if (event.has_failure() && !is_tried_again(event.failure()) && failure_.empty()) {
    failure_ = event.failure().reason() + ": " + event.failure().message();
    LOG_ERROR("worker", "{}", failure_);
  }
  if (event.has_checkpoint_damaged())
    LOG_WARNING("worker", "the checkpoint of step {} is damaged: {}; it is kept as {}",
                event.checkpoint_damaged().step(), event.checkpoint_damaged().why(),
                event.checkpoint_damaged().path());
  wire::WorkerCommand command;
  if (!failure_.empty() || (standing.phase() == wire::WORKER_FINISHED && !is_finished_)) {
    is_finished_ = failure_.empty();
    command.mutable_retire()->set_reason(is_finished_ ? "done" : failure_);
    return send(command);
  }
  if (standing.phase() != wire::WORKER_READY || has_formed_) return;
  has_formed_ = true;
  wire::Form& form = *command.mutable_form();
  form.set_generation(1);
  form.set_mode(wire::FORM_START);
  wire::Member& member = *form.add_members();
  *member.mutable_id() = standing.id();
  *member.mutable_address() = standing.listen();
  form.set_from_checkpoint(standing.has_checkpoint());
  form.set_checkpoint_step(standing.checkpoint_step());
  send(command);
}

std::string LoneCoordinator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace rubato::worker
