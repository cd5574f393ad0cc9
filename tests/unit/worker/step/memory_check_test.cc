// What the plan says is what devices are asked for, and what cannot fit is refused before that.
#include "worker/step/memory_check.h"

#include "common/log.h"
#include "common/words.h"
#include "tests/sentences.h"
#include "worker/checkpoint/weight_files.h"
#include "worker/data/token_file.h"
#include "worker/step/model_replica.h"
#include "worker/testing/deferred_device.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

// What was asked of a device, and how much of it there is.
struct Account {
  std::uint64_t asked = 0;  // bytes, of all calls
  std::uint64_t largest_upload = 0;
  std::uint64_t refuses_beyond = MemoryLimit::kNone;
  MemoryLimit limit;
};

class AccountedDevice : public Device {
 public:
  AccountedDevice(std::unique_ptr<Device> device, Account& account)
      : device_(std::move(device)), account_(account) {}
  std::string name() const override { return device_->name(); }
  std::string fingerprint() const override { return device_->fingerprint(); }
  Result<MemoryLimit> memory() const override { return account_.limit; }
  Result<Arena> allocate(std::size_t bytes) override {
    account_.asked += bytes;
    if (account_.asked > account_.refuses_beyond) return Error(Code::kExhausted, "no more");
    return device_->allocate(bytes);
  }
  std::unique_ptr<Stream> make_stream() override { return device_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return device_->make_event(); }
  Kernels& kernels() override { return device_->kernels(); }
  void copy_to_device(Stream& stream, Buffer to, const void* from) override {
    account_.largest_upload = std::max<std::uint64_t>(account_.largest_upload, to.bytes());
    device_->copy_to_device(stream, to, from);
  }
  void copy_to_host(Stream& stream, void* to, ConstBuffer from) override {
    device_->copy_to_host(stream, to, from);
  }
  void copy(Stream& stream, Buffer to, ConstBuffer from) override {
    device_->copy(stream, to, from);
  }
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override {
    device_->memset(stream, to, byte);
  }
  void* host_view(Buffer buffer) override { return device_->host_view(buffer); }
  const void* host_view(ConstBuffer buffer) override { return device_->host_view(buffer); }

 protected:
  void release(void*, std::size_t) override { CHECK(false); }  // arenas are the other device's

 private:
  const std::unique_ptr<Device> device_;
  Account& account_;
};

class MemoryCheckTest : public ::testing::TestWithParam<const char*> {
 protected:
  MemoryCheckTest() {
    char path[] = "/tmp/rubato-memory-XXXXXX";
    folder_ = mkdtemp(path);
    config_.model = model_preset(GetParam()).value();
    config_.model.sequence_length = 16;
    config_.data_path = folder_ + "/tokens.bin";
    config_.sampler = {.seed = 3,
                       .global_batch = 12,
                       .micro_batch = 6,
                       .sequence_length = 16,
                       .validation_fraction = 0};
    config_.checkpoint_path = folder_ + "/checkpoints";
    auto writer = std::move(TokenFileWriter::create(files_, config_.data_path, 257)).value();
    EXPECT_TRUE(writer.append(std::vector<std::int32_t>(800, 5)).ok());
    EXPECT_TRUE(writer.finish().ok());
    set_log_sink([this](LogLevel, std::string_view component, std::string_view text) {
      if (component == "memory") logged_.emplace_back(text);
    });
  }
  ~MemoryCheckTest() override {
    set_log_sink({});
    std::filesystem::remove_all(folder_);
  }

  MemoryPlan plan(std::int64_t micro) {
    const auto device = open_test_device({}).value();
    return plan_memory({.model = config_.model,
                        .micro_batch = micro,
                        .micro_batches = config_.sampler.global_batch / micro},
                       *device)
        .value();
  }
  Result<std::unique_ptr<Replica>> make() {
    const auto open = [this](const DeviceSpec& spec) -> Result<std::unique_ptr<Device>> {
      TRY(auto device, open_test_device(spec));
      return std::unique_ptr<Device>(
          std::make_unique<AccountedDevice>(std::move(device), account_));
    };
    return make_model_replica(config_, {.files = files_, .open_device = open});
  }
  Error refused() {
    const auto made = make();
    EXPECT_FALSE(made.ok());
    if (made.ok()) return {Code::kInternal, "was made"};
    EXPECT_EQ(wrong_number(made.error().what()), "");
    return made.error();
  }

  PosixFileSystem files_;
  std::string folder_;
  TrainingConfig config_;
  Account account_;
  std::vector<std::string> logged_;
};
INSTANTIATE_TEST_SUITE_P(Families, MemoryCheckTest, ::testing::Values("gpt2-tiny", "llama-tiny"));

TEST_P(MemoryCheckTest, ThePlanIsWhatIsTaken) {
  const MemoryPlan planned = plan(6);
  const auto replica = make();
  ASSERT_TRUE(replica.ok()) << replica.error().to_string();
  ASSERT_TRUE((*replica)->fingerprint().ok());
  EXPECT_EQ(account_.asked, planned.sum() - planned.copy);
  ASSERT_TRUE((*replica)->init_from_seed().ok());
  ASSERT_TRUE((*replica)->snapshot().ok());
  EXPECT_EQ(account_.asked, planned.sum());
}

// From the seed, and from weights: what is drawn or read is on the host one tensor at a time.
TEST_P(MemoryCheckTest, AJobBeginsThroughMemoryOfOneTensor) {
  const auto device = open_test_device({}).value();
  const auto model = make_model(config_.model, 1, *device).value();
  const ParameterTable& table = model->table();
  const auto tensor = static_cast<std::uint64_t>(table.largest_count()) * sizeof(float);
  std::vector<float> weights(static_cast<std::size_t>(table.flat_count()));
  model->init(9, weights);
  const std::string from = folder_ + "/weights";
  std::filesystem::create_directory(from);
  ASSERT_TRUE(
      write_weights(files_, from, config_.model, table, weights, {.shard_bytes = 1 << 30}).ok());
  for (const std::string& init_from : {std::string(), from}) {
    config_.init_from = init_from;
    account_ = {};
    const auto replica = make();
    ASSERT_TRUE(replica.ok()) << replica.error().to_string();
    ASSERT_TRUE((*replica)->init_from_seed().ok());
    EXPECT_EQ(account_.largest_upload, tensor);
  }
}

TEST_P(MemoryCheckTest, SaysOnceWhatGoesWhere) {
  account_.limit = {plan(6).sum(), "said by a test"};
  ASSERT_TRUE(make().ok());  // what fits exactly, fits
  ASSERT_EQ(logged_.size(), 1u);
  for (const char* part :
       {"parameters and optimizer ", ", gradient and its exact sum ", ", activations ",
        ", a copy for checkpoints and newcomers ", " (said by a test)"})
    EXPECT_NE(logged_[0].find(part), std::string::npos) << logged_[0];
}

// A newcomer may need it; a job that is alone needs none.
TEST_P(MemoryCheckTest, TheCopyOfAJobWithoutCheckpointsIsPlannedAndNoReason) {
  config_.checkpoint_path.clear();
  account_.limit = {plan(6).sum() - plan(6).copy, "said by a test"};
  ASSERT_TRUE(make().ok());
  ASSERT_EQ(logged_.size(), 1u);
  EXPECT_NE(logged_[0].find(", a copy for checkpoints and newcomers "), std::string::npos);
  EXPECT_NE(logged_[0].find(human_bytes(plan(6).sum()) + " of "), std::string::npos) << logged_[0];
  --account_.limit.bytes;
  EXPECT_EQ(refused().reason(), "OutOfMemory");
}

TEST_P(MemoryCheckTest, RefusesWithTheLargestMicroBatchThatFits) {
  account_.limit = {plan(4).sum(), "said by a test"};
  const Error error = refused();
  EXPECT_EQ(error.code(), Code::kExhausted);
  EXPECT_EQ(error.reason(), "OutOfMemory");
  const std::string begin =
      "the model does not fit into the memory of " + open_test_device({}).value()->name() + ": " +
      human_bytes(plan(6).sum()) + " of " + human_bytes(account_.limit.bytes) +
      " (said by a test); batch.micro 4 would fit (" + human_bytes(plan(4).sum()) +
      "): parameters and optimizer ";
  EXPECT_TRUE(error.what().starts_with(begin)) << error.what();
  EXPECT_EQ(account_.asked, 0u);
  // A divisor of the global batch, so not 5; and 3 where 4 is a byte too large.
  account_.limit.bytes = plan(4).sum() - 1;
  EXPECT_NE(refused().what().find("batch.micro 3 would fit"), std::string::npos);
}

TEST_P(MemoryCheckTest, RefusesWithWhatANodeNeedsWhereNothingFits) {
  account_.limit = {plan(1).sum() - 1, "said by a test"};
  EXPECT_NE(refused().what().find("no micro-batch fits: a smaller model or batch.sequenceLength, "
                                  "or a node and a pod with more than " +
                                  human_bytes(plan(1).sum()) + " for each worker"),
            std::string::npos)
      << refused().what();
  EXPECT_LT(refused().what().size(), 512u);  // what the operator keeps
}

// Memory that somebody else took meanwhile.
TEST_P(MemoryCheckTest, ADeviceThatRunsOutIsNoFaultOfTheSpec) {
  account_.refuses_beyond = plan(6).state;
  EXPECT_EQ(refused().reason(), "OutOfMemory");
}

// On a processor the probabilities above the diagonal of long sequences are never touched.
TEST_P(MemoryCheckTest, WhatMayNeverBeTouchedIsNoReason) {
  config_.model.sequence_length = 2048;
  const MemoryPlan planned = plan(1);
  EXPECT_EQ(planned.least(), planned.sum() - planned.untouched);
  if (open_test_device({}).value()->name().starts_with("cuda")) return;
  const auto heads = static_cast<std::uint64_t>(config_.model.layers * config_.model.heads);
  const std::uint64_t all = heads * 2048 * 2048 * 4;
  EXPECT_GT(planned.untouched, all * 9 / 20);
  EXPECT_LT(planned.untouched, all / 2);
  config_.model.sequence_length = 1024;
  EXPECT_EQ(plan(1).untouched, 0u);
}

}  // namespace
}  // namespace rubato::worker
