// StepEngine: what is left when it ends goes in an order that nothing outlives what it is of.
#include "tests/unit/worker/step/fake_replica.h"
#include "tests/unit/worker/step/sim_worker.h"

namespace rubato::worker {
namespace {

// Whether a replica and its device are there, and who of those on the device has gone before it.
struct DeviceLife {
  bool is_there = true;
  int gone_before = 0;
  void leave() { gone_before += is_there ? 1 : 0; }
};

class MortalReplica : public FakeReplica {
 public:
  explicit MortalReplica(std::shared_ptr<DeviceLife> life) : life_(std::move(life)) {}
  ~MortalReplica() override { life_->is_there = false; }

 private:
  const std::shared_ptr<DeviceLife> life_;
};

class MortalCommunicator : public AloneCommunicator {
 public:
  MortalCommunicator(std::uint64_t generation, Device& device, std::shared_ptr<DeviceLife> life)
      : AloneCommunicator(generation, device), life_(std::move(life)) {}
  ~MortalCommunicator() override { life_->leave(); }

 private:
  const std::shared_ptr<DeviceLife> life_;
};

class MortalFactory : public CommunicatorFactory {
 public:
  MortalFactory(Device& device, std::shared_ptr<DeviceLife> life)
      : device_(device), life_(std::move(life)) {}
  ~MortalFactory() override { life_->leave(); }
  Result<std::unique_ptr<Communicator>> create(const Membership& membership, MonoTime) override {
    return std::unique_ptr<Communicator>(
        std::make_unique<MortalCommunicator>(membership.generation, device_, life_));
  }
  void fence(std::uint64_t) override {}

 private:
  Device& device_;
  const std::shared_ptr<DeviceLife> life_;
};

// A worker that is parked has a generation prepared, and is retired before it switches to it.
TEST(EngineTeardown, APreparedCommunicatorGoesBeforeItsDevice) {
  testing::SimExecutor sim(1);
  testing::SimProcess& process = sim.process("worker");
  testing::SimDisk files(process, "n");
  const WorkerName self{"pod", 0, 1};
  LinkHub hub(process, std::make_unique<NoNetwork>(process), {.job_uid = "job", .self = self});
  const auto life = std::make_shared<DeviceLife>();
  wire::WorkerStanding standing;
  auto engine = std::make_unique<StepEngine>(EngineParts{
      .executor = process,
      .files = files,
      .self = self,
      .host = "host",
      .hub = hub,
      .configure = [life](const std::string&, const std::string&) -> Result<ConfiguredJob> {
        ConfiguredJob job;
        job.plan.stop_steps = 10;
        job.replica = std::make_unique<MortalReplica>(life);
        return job;
      },
      .make_factory =
          [life](Device& device) { return std::make_unique<MortalFactory>(device, life); },
      .emit = [&](const wire::WorkerEvent& event) { standing = event.standing(); },
      .print = [](const std::string&) {},
      .cpu = "sim",
  });
  Task run = process.spawn("step", [&](const std::stop_token&) { engine->run(); });
  wire::WorkerCommand configure;
  configure.mutable_configure()->set_micro_batches(kFakeMicroBatches);
  engine->command(configure);
  sim.settle();
  for (const wire::FormMode mode : {wire::FORM_START, wire::FORM_PLANNED}) {
    wire::WorkerCommand form;
    form.mutable_form()->set_generation(mode == wire::FORM_START ? 1 : 2);
    form.mutable_form()->set_mode(mode);
    form.mutable_form()->set_parked(mode == wire::FORM_START);
    *form.mutable_form()->add_members()->mutable_id() = standing.id();
    engine->command(form);
    sim.settle();
  }
  EXPECT_EQ(standing.prepared_generation(), 2u);
  engine->leave("retired");
  run.join();
  engine.reset();
  EXPECT_FALSE(life->is_there);
  EXPECT_EQ(life->gone_before, 2) << "the communicator and its factory";
}

}  // namespace
}  // namespace rubato::worker
