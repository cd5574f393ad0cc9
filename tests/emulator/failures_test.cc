// Each call of CUDA and cuBLASLt that the backend makes fails in turn, and each piece of work: a
// typed error comes of it or, where nothing depends on the call, the right result; never a crash, a
// wrong result that nobody tells, or a wait without an end.
#include "tests/emulator/calls.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/emulator_fixture.h"
#include "worker/backend/device.h"
#include "worker/backend/kernels.h"

#include <map>
#include <optional>
#include <set>
#include <string>

namespace rubato::worker {
namespace {

using emulator::Fault;
using emulator::take_faults;
using Floats = std::vector<float>;

constexpr std::int64_t kSide = 64;  // of square matrices, and of attention's heads
constexpr AttentionShape kAttention{.batch = 1, .length = kSide, .heads = 1, .head_size = kSide};

// One product with a bias on one stream, attention of it on another, and what comes of it: all
// kinds of calls that the backend makes.
Result<Floats> use(Device& device) {
  constexpr std::int64_t kCount = kSide * kSide;
  Floats values(std::size_t{kCount}, 0.5f), result(values.size());  // outlive the streams
  TRY(const MemoryLimit memory, device.memory());
  CHECK_GT(memory.bytes, std::uint64_t{0});
  TRY(Arena arena, device.allocate(std::size_t{64} * kCount * sizeof(float)));
  Kernels& kernels = device.kernels();
  const auto first = device.make_stream(), second = device.make_stream();
  const auto made = device.make_event();
  const auto take = [&](std::int64_t count) { return arena.take(DType::kF32, count); };
  const Buffer a = take(kCount), b = take(3 * kCount), bias = take(3 * kSide), c = take(3 * kCount),
               saved = take(kernels.attention_saved(kAttention)), out = take(kCount),
               copied = take(kCount);
  device.copy_to_device(*first, a, values.data());
  device.memset(*first, b, 0x3C);
  device.memset(*first, bias, 0x3C);
  kernels.gemm(*first, {.m = kSide, .n = 3 * kSide, .k = kSide}, a, b, bias, c);
  made->record(*first);
  made->hold(*second);
  kernels.attention_forward(*second, kAttention, c, saved, out);
  device.copy(*second, copied, out);
  device.copy_to_host(*second, result.data(), copied);
  made->record(*second);
  for (int polls = 0; !made->is_done(); ++polls) CHECK_LT(polls, 1000);
  TRY_OK(made->wait());
  TRY_OK(first->synchronize());
  TRY_OK(second->synchronize());
  return result;
}

Result<Floats> story() {
  TRY(const auto device, open_device({.kind = "cuda"}));
  return use(*device);
}

// Calls that no result depends on: those that give something back (and may then fail to), and
// those whose answer another call asks for again.
bool may_be_ignored(const std::string& call) {
  static const std::set<std::string> kCalls = {
      "cudaFree",
      "cudaEventDestroy",
      "cudaStreamDestroy",
      "cublasLtDestroy",
      "cublasLtMatmulDescDestroy",
      "cublasLtMatmulPreferenceDestroy",
      "cublasLtMatrixLayoutDestroy",
      "cudaSetDevice",
      "cudaEventQuery",
      "cudaGetLastError",
      "cudaStreamSynchronize",
  };
  return kCalls.contains(call);
}

class Failures : public ::testing::Test {
 protected:
  Failures() { begin(); }
  ~Failures() override {
    emulator::reset();
    for (const Fault& fault : take_faults()) ADD_FAILURE() << fault.text;
  }
  static void begin() {
    emulator::reset();
    (void)cudaGetLastError();
    emulator::start_calls();
  }
};

TEST_F(Failures, OfEachCallInTurn) {
  const std::size_t memory = emulator::live_allocations();
  const Result<Floats> right = story();
  ASSERT_TRUE(right.ok()) << right.error().to_string();
  const std::vector<std::string> calls = emulator::calls();
  ASSERT_GT(calls.size(), 50u);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i) + ", " + calls[i]);
    begin();
    emulator::fail_call(i);
    const Result<Floats> got = story();
    const std::vector<Fault> faults = take_faults();
    for (const Fault& fault : faults)  // a wait that could not be enqueued; its stream tells it
      EXPECT_EQ(fault.kind, emulator::FaultKind::kStreamRace) << fault.text;
    if (!may_be_ignored(calls[i])) {
      EXPECT_EQ(emulator::live_allocations(), memory);
      EXPECT_EQ(emulator::live_streams() + emulator::live_events(), 0u);
    }
    if (got.ok()) {
      EXPECT_TRUE(may_be_ignored(calls[i]));
      EXPECT_TRUE(faults.empty());
      EXPECT_EQ(*got, *right);
      continue;
    }
    const Code want = calls[i] == "cudaMalloc" ? Code::kExhausted : Code::kInternal;
    EXPECT_EQ(got.error().code(), want) << got.error().to_string();
    const bool is_named = got.error().what().find("cuBLAS") != std::string::npos ||
                          got.error().what().find("cudaError") != std::string::npos;
    EXPECT_TRUE(is_named) << got.error().what();
  }
}

TEST_F(Failures, OfEachPieceOfWorkInTurn) {
  const std::map<cudaError_t, std::string> errors = {
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"}};
  for (const auto& [error, name] : errors) {
    std::size_t failed = 0;
    for (std::size_t i = 0;; ++i) {
      SCOPED_TRACE("piece " + std::to_string(i) + ", " + name);
      begin();
      emulator::fail_work(i, error);
      const Result<Floats> got = story();
      if (got.ok()) break;
      ++failed;
      EXPECT_EQ(got.error().code(), Code::kInternal);
      EXPECT_EQ(got.error().reason(), kDeviceLost);
      EXPECT_NE(got.error().what().find(name), std::string::npos) << got.error().what();
    }
    EXPECT_EQ(failed, 8u);  // what use() enqueues, and the zeroing of its arena
  }
}

TEST_F(Failures, OpeningSaysWhatIsNotThere) {
  EXPECT_EQ(open_device({.kind = "cuda:1"}).error().code(), Code::kNotFound);
  EXPECT_EQ(open_device({.kind = "cuda:x"}).error().code(), Code::kInvalid);
}

TEST_F(Failures, MemoryIsWhatIsFree) {
  const auto device = std::move(open_device({.kind = "cuda"})).value();
  const MemoryLimit before = device->memory().value();
  EXPECT_EQ(before.source, "free on cuda:0");
  EXPECT_LE(before.bytes, emulator::kDeviceBytes);
  const Arena arena = std::move(device->allocate(1 << 20)).value();
  EXPECT_EQ(device->memory()->bytes, before.bytes - (1 << 20));
}

// A query that is answered "not ready" leaves that answer as the thread's last error.
TEST_F(Failures, AQueryIsNoErrorOfTheNextLaunch) {
  const auto device = std::move(open_device({.kind = "cuda"})).value();
  Arena arena = std::move(device->allocate(1024)).value();
  const Buffer x = arena.take(DType::kF32, 8);
  const auto stream = device->make_stream();
  const auto event = device->make_event();
  device->memset(*stream, x, 0);
  event->record(*stream);
  EXPECT_FALSE(event->is_done());
  device->kernels().gelu_forward(*stream, x, x);
  const Status done = stream->synchronize();
  EXPECT_TRUE(done.ok()) << done.error().to_string();
}

}  // namespace
}  // namespace rubato::worker
