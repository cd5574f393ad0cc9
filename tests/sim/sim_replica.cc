#include "tests/sim/sim_replica.h"

#include "common/rng.h"
#include "common/testing/sim_disk.h"
#include "tests/sim/sim_script.h"
#include "tests/sim/tiny_model.h"
#include "worker/backend/digest.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/token_file.h"
#include "worker/pytorch/torch_replica.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

using json::Value;
using worker::Buffer;
using worker::Device;
using worker::MicroPart;
using worker::StepRecord;
using worker::Stream;
using worker::Verdict;

constexpr std::uint64_t kTokens = 4100;
constexpr std::uint64_t kSpikesOneIn = 150;

// The CPU device under the name of another instruction set: other bits, as far as anybody can tell.
class SimDevice : public Device {
 public:
  SimDevice(std::unique_ptr<Device> device, std::string isa, bool has_memory)
      : device_(std::move(device)), isa_(std::move(isa)), has_memory_(has_memory) {}
  std::string name() const override { return device_->name(); }
  std::string fingerprint() const override { return "cpu/" + isa_ + "/sim"; }
  Result<worker::MemoryLimit> memory() const override { return worker::MemoryLimit{}; }
  Result<worker::Arena> allocate(std::size_t bytes) override {
    if (!has_memory_) return Error(Code::kExhausted, "no memory for " + std::to_string(bytes));
    return device_->allocate(bytes);
  }
  std::unique_ptr<Stream> make_stream() override { return device_->make_stream(); }
  std::unique_ptr<worker::Event> make_event() override { return device_->make_event(); }
  worker::Kernels& kernels() override { return device_->kernels(); }
  void copy_to_device(Stream& stream, Buffer to, const void* from) override {
    device_->copy_to_device(stream, to, from);
  }
  void copy_to_host(Stream& stream, void* to, worker::ConstBuffer from) override {
    device_->copy_to_host(stream, to, from);
  }
  void copy(Stream& stream, Buffer to, worker::ConstBuffer from) override {
    device_->copy(stream, to, from);
  }
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override {
    device_->memset(stream, to, byte);
  }
  void* host_view(Buffer buffer) override { return device_->host_view(buffer); }
  const void* host_view(worker::ConstBuffer buffer) override { return device_->host_view(buffer); }

 protected:
  void release(void*, std::size_t) override { CHECK(false); }  // arenas belong to the CPU device

 private:
  const std::unique_ptr<Device> device_;
  const std::string isa_;
  const bool has_memory_;
};

// Tells of each state that the replica under it holds, and is it in all else.
class WatchedReplica : public worker::Replica {
 public:
  // `script`: what the replica computes with, if it is a person's.
  WatchedReplica(std::unique_ptr<worker::TorchProgram> script,
                 std::unique_ptr<worker::Replica> replica,
                 std::function<void(std::uint64_t, std::uint64_t)> holds)
      : script_(std::move(script)), replica_(std::move(replica)), holds_(std::move(holds)) {}

  Device& device() override { return replica_->device(); }
  Stream& stream() override { return replica_->stream(); }
  std::uint32_t micro_batches() const override { return replica_->micro_batches(); }
  std::uint64_t tokens_per_step() const override { return replica_->tokens_per_step(); }
  std::uint32_t validation_micro_batches() const override {
    return replica_->validation_micro_batches();
  }
  double learning_rate(std::uint64_t step) const override { return replica_->learning_rate(step); }
  Result<std::string> fingerprint() override { return replica_->fingerprint(); }
  std::uint64_t step() const override { return replica_->step(); }
  void set_step(std::uint64_t step) override {  // of a state that came from a donor, whole
    replica_->set_step(step);
    tell();
  }
  std::vector<Buffer> sections() override { return replica_->sections(); }
  Status init_from_seed() override { return told(replica_->init_from_seed()); }
  Result<std::vector<std::uint64_t>> checkpoints() const override {
    return replica_->checkpoints();
  }
  Result<worker::FoundCheckpoint> look_at_checkpoint(std::uint64_t step) const override {
    return replica_->look_at_checkpoint(step);
  }
  Result<worker::LoadedCheckpoint> load_checkpoint(std::uint64_t step) override {
    return told(replica_->load_checkpoint(step));
  }
  Result<std::string> set_aside_checkpoint(std::uint64_t step) override {
    return replica_->set_aside_checkpoint(step);
  }
  Result<std::vector<std::string>> damaged_checkpoints() const override {
    return replica_->damaged_checkpoints();
  }
  Result<std::shared_ptr<worker::Snapshot>> snapshot() override { return replica_->snapshot(); }
  Result<std::uint64_t> weight_digest() override { return replica_->weight_digest(); }
  Status show() override { return replica_->show(); }
  Status keep_apart() override {
    const Buffer before = replica_->sections()[0];
    TRY_OK(replica_->keep_apart());
    // Behind its loop a script may write its model.
    const bool is_apart = replica_->sections()[0].address() != before.address();
    if (is_apart) replica_->device().memset(replica_->stream(), before, 0xa5);
    return replica_->stream().synchronize();
  }
  void take_place(std::uint32_t rank, std::uint32_t members, std::uint64_t stop_steps) override {
    replica_->take_place(rank, members, stop_steps);
  }
  void clear() override { replica_->clear(); }
  void expect(std::span<const std::uint32_t> micros) override { replica_->expect(micros); }
  Result<MicroPart> compute(const worker::RoundKey& key, std::uint32_t micro) override {
    return replica_->compute(key, micro);
  }
  Status accumulate() override { return replica_->accumulate(); }
  Buffer accumulators() override { return replica_->accumulators(); }
  Buffer reduced() override { return replica_->reduced(); }
  void weigh() override { replica_->weigh(); }
  Result<Verdict> judge(std::uint32_t attempt) override { return replica_->judge(attempt); }
  Result<StepRecord> apply(std::int64_t loss_q, std::uint64_t sample_digest) override {
    return told(replica_->apply(loss_q, sample_digest));
  }
  Status raise(std::uint32_t attempt) override { return told(replica_->raise(attempt)); }
  Result<std::int64_t> validate(std::uint32_t micro) override { return replica_->validate(micro); }
  double norm_of_mean() const override { return replica_->norm_of_mean(); }
  double mean_loss(std::int64_t loss_q, std::uint32_t micro_batches) const override {
    return replica_->mean_loss(loss_q, micro_batches);
  }

 private:
  void tell() {
    if (holds_) holds_(replica_->step(), state_digest(*replica_));
  }
  template <class T>
  Result<T> told(Result<T> result) {
    if (result.ok()) tell();
    return result;
  }

  const std::unique_ptr<worker::TorchProgram> script_;
  const std::unique_ptr<worker::Replica> replica_;
  const std::function<void(std::uint64_t, std::uint64_t)> holds_;
};

}  // namespace

std::string JobShape::folder() const { return fmt::format("/ckpt/{}-{}", name, life); }

Value training_of(const JobShape& shape) {
  const Value stop = Value::object({{"steps", shape.steps}});
  const Value checkpoint =
      Value::object({{"every", shape.checkpoint_every}, {"path", shape.folder()}});
  if (shape.is_script)
    return Value::object({{"batch", Value::object({{"global", shape.micro_batches}, {"micro", 1}})},
                          {"seed", shape.ends_at},  // sim_script.h
                          {"stop", stop},
                          {"checkpoint", checkpoint}});
  return Value::object(
      {{"model", Value::object({{"family", "gpt2"}, {"layers", 2}, {"hidden", 64}, {"heads", 2}})},
       {"data", Value::object({{"path", kDataPath}})},
       {"batch",
        Value::object(
            {{"global", shape.micro_batches}, {"micro", 1}, {"sequenceLength", kSequence}})},
       {"optimizer", Value::object({{"learningRate", 0.003}})},
       {"stop", stop},
       {"checkpoint", checkpoint}});
}

void write_tokens(FileSystem& files) {
  CHECK(files.make_directories("/data").ok());
  auto writer = worker::TokenFileWriter::create(files, kDataPath, kTinyVocabulary);
  CHECK(writer.ok());
  Rng rng(7);
  std::vector<std::int32_t> tokens(kTokens);
  for (std::int32_t& token : tokens)
    token = rng.below(kSpikesOneIn) == 0 ? kTinySpike
                                         : static_cast<std::int32_t>(rng.below(kTinySpike));
  CHECK(writer->append(tokens).ok());
  CHECK(writer->finish().ok());
}

Result<std::unique_ptr<worker::Replica>> make_sim_replica(const worker::TrainingConfig& config,
                                                          worker::ReplicaOptions options,
                                                          const ReplicaHooks& hooks) {
  if (hooks.start) hooks.start();
  options.open_device = [isa = hooks.isa, has_memory = hooks.has_memory](
                            const worker::DeviceSpec&) -> Result<std::unique_ptr<Device>> {
    TRY(auto device, worker::open_device({}));
    return std::unique_ptr<Device>(std::make_unique<SimDevice>(std::move(device), isa, has_memory));
  };
  const std::function<void()> work = hooks.work ? hooks.work : [] {};
  options.make_model = [work](const worker::ModelConfig& model, std::int64_t micro_batch,
                              Device& device) -> Result<std::unique_ptr<worker::Model>> {
    return make_tiny_model(model, micro_batch, device, work);
  };
  auto script = config.has_model ? nullptr : make_sim_script(work, hooks.has_finished);
  TRY(auto replica, script ? worker::make_torch_replica(config, options, *script)
                           : worker::make_model_replica(config, options));
  return std::unique_ptr<worker::Replica>(
      std::make_unique<WatchedReplica>(std::move(script), std::move(replica), hooks.holds));
}

std::uint64_t state_digest(worker::Replica& replica) {
  worker::Digest digest(replica.step());
  for (const Buffer buffer : replica.sections())
    digest.add(replica.device().host_view(buffer), buffer.bytes());
  return digest.value();
}

// ---- The undisturbed run

struct ReferenceRun::Impl {
  explicit Impl(const JobShape& shape)
      : disk(executor.process("reference"), "reference"), volume(executor, 1) {
    disk.mount("/", volume);
    write_tokens(disk);
    const std::string training = json::dump(training_of(shape));
    const auto config = worker::parse_training(training);
    CHECK(config.ok());
    auto made = make_sim_replica(*config, {.files = disk, .training = training}, {});
    if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().to_string());
    replica = std::move(*made);
    CHECK(replica->init_from_seed().ok());
    states.push_back({state_digest(*replica)});
  }

  void step() {
    const auto bytes = static_cast<std::size_t>(replica->reduced().bytes());
    for (std::uint32_t attempt = 0;; ++attempt) {
      replica->clear();
      std::int64_t loss = 0;
      std::uint64_t samples = 0;
      for (std::uint32_t m = 0; m < replica->micro_batches(); ++m) {
        const auto part = replica->compute({}, m);
        CHECK(part.ok() && replica->accumulate().ok());
        loss += part->loss_q;
        samples += part->sample_digest;
      }
      std::memcpy(replica->reduced().address(), replica->accumulators().address(), bytes);
      const auto verdict = replica->judge(attempt);
      CHECK(verdict.ok() && !verdict->non_finite);
      if (verdict->overflow) {
        CHECK(replica->raise(attempt).ok());
        states.back().push_back(state_digest(*replica));
        continue;
      }
      CHECK(replica->apply(loss, samples).ok());
      states.push_back({state_digest(*replica)});
      sums.emplace_back(loss, samples);
      return;
    }
  }

  testing::SimExecutor executor{1};
  testing::SimDisk disk;
  testing::SimVolume volume;
  std::unique_ptr<worker::Replica> replica;
  std::vector<std::vector<std::uint64_t>> states;  // by step: when committed, after each redo
  std::vector<std::pair<std::int64_t, std::uint64_t>> sums;  // by step: its loss, its samples
};

ReferenceRun::ReferenceRun(const JobShape& shape) {
  static std::map<std::tuple<std::uint32_t, std::uint64_t, bool>, std::shared_ptr<Impl>> runs;
  std::shared_ptr<Impl>& run = runs[{shape.micro_batches, shape.steps, shape.is_script}];
  if (!run) run = std::make_shared<Impl>(shape);
  impl_ = run;
}
void ReferenceRun::prepare(const JobShape& shape) { ReferenceRun(shape).after(shape.last_step()); }
ReferenceRun::~ReferenceRun() = default;

std::uint64_t ReferenceRun::after(std::uint64_t step) {
  while (impl_->states.size() <= step) impl_->step();
  return impl_->states[step].front();
}

std::uint64_t ReferenceRun::rounds(std::uint64_t steps) {
  after(steps);
  std::uint64_t sum = 0;
  for (std::uint64_t step = 0; step < steps; ++step) sum += impl_->states[step].size();
  return sum;
}

bool ReferenceRun::passes(std::uint64_t step, std::uint64_t digest) {
  if (after(step) == digest) return true;
  after(step + 1);  // what redos of this step leave is known then
  return std::ranges::find(impl_->states[step], digest) != impl_->states[step].end();
}

bool ReferenceRun::decides(std::uint64_t step, std::int64_t loss_q, std::uint64_t sample_digest) {
  after(step + 1);
  return impl_->sums[step] == std::pair(loss_q, sample_digest);
}

std::string isa_of(const std::string& fingerprint) {
  const std::size_t slash = fingerprint.find('/');
  if (slash == std::string::npos) return "";
  return fingerprint.substr(slash + 1, fingerprint.find('/', slash + 1) - slash - 1);
}

Result<LastCheckpoint> read_last_checkpoint(FileSystem& files, const JobShape& shape,
                                            std::string isa) {
  const std::string training = json::dump(training_of(shape));
  TRY(const worker::TrainingConfig config, worker::parse_training(training));
  if (isa.empty()) {
    TRY(const worker::CheckpointInfo newest,
        worker::read_checkpoint_info(files, config.checkpoint_path));
    isa = isa_of(newest.fingerprint);
  }
  TRY(auto replica, make_sim_replica(config, {.files = files, .training = training}, {.isa = isa}));
  LastCheckpoint last;
  TRY(const auto steps, replica->checkpoints());
  if (steps.empty()) return Error(Code::kNotFound, "no checkpoint");
  last.step = steps.back();
  TRY_OK(replica->load_checkpoint(last.step));
  last.digest = state_digest(*replica);
  return last;
}

}  // namespace rubato::sim
