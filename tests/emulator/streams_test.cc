// The order of work: a missing wait is found although values are right, and what has not run yet
// cannot be mistaken for what has.
#include "tests/emulator/device_memory.h"
#include "tests/emulator/emulator_fixture.h"
#include "tests/emulator/planted.h"

#include <cstring>
#include <string>

namespace rubato::emulator {
namespace {

constexpr std::size_t kFloats = 2048;  // what sum_blocks reads
constexpr float kPoison = -2.87e-16f;  // 0xA5A5A5A5, nearly

class Streams : public Emulator {
 protected:
  Streams() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  }
  // `later` waits for what is on `earlier` now.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    EXPECT_EQ(cudaEventRecord(event, earlier), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(later, event, 0), cudaSuccess);
  }
  void finish() const {
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  static void expect_race(const char* one, const char* another) {
    const std::vector<Fault> faults = take_faults();
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].kind, FaultKind::kStreamRace);
    EXPECT_NE(faults[0].text.find(one), std::string::npos) << faults[0].text;
    EXPECT_NE(faults[0].text.find(another), std::string::npos) << faults[0].text;
  }
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  Floats ones = Floats(kFloats, 1.0f), twos = Floats(kFloats, 2.0f);
};

TEST_F(Streams, AKernelThatReadsWhatAnotherStreamWrites) {
  for (const bool is_ordered : {true, false}) {
    float* x = device(ones);
    float* sums = device(Floats(8, 0.0f));
    EXPECT_EQ(copy(x, twos.data(), kFloats, cudaMemcpyHostToDevice, stream), cudaSuccess);
    if (is_ordered) order(stream, other);
    sum_blocks(other, x, sums, true);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    // Deferred as it is, the copy has not run unless it had to.
    EXPECT_EQ(host(sums, 8)[0], is_ordered ? 512.0f : 256.0f);
    finish();
    if (!is_ordered) expect_race("copy on stream", "sum_of_block");
    EXPECT_TRUE(take_faults().empty());
  }
}

TEST_F(Streams, ACopyThatOverwritesWhatAnotherStreamReads) {
  for (const bool is_ordered : {true, false}) {
    float* x = device(ones);
    float* sums = device(Floats(8, 0.0f));
    sum_blocks(stream, x, sums, true);
    if (is_ordered) order(stream, other);
    EXPECT_EQ(copy(x, twos.data(), kFloats, cudaMemcpyHostToDevice, other), cudaSuccess);
    finish();
    if (!is_ordered) expect_race("copy on stream", "sum_of_block");
    EXPECT_TRUE(take_faults().empty());
  }
}

TEST_F(Streams, TwoThatOnlyReadNeedNoOrder) {
  float* x = device(ones);
  float* a = device(Floats(8, 0.0f));
  float* b = device(Floats(8, 0.0f));
  sum_blocks(stream, x, a, true);
  sum_blocks(other, x, b, true);
  finish();
  // A third one that writes must come after both.
  order(stream, other);
  EXPECT_EQ(copy(x, twos.data(), kFloats, cudaMemcpyHostToDevice, other), cudaSuccess);
  finish();
}

TEST_F(Streams, AnEventIsWhatWasEnqueuedBeforeIt) {
  float* x = device(ones);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(copy(x, twos.data(), kFloats, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x, 0, sizeof(float), other), cudaSuccess);
  finish();
  expect_race("copy on stream", "memset on stream");
}

TEST_F(Streams, WhatTheHostHasWaitedForIsBeforeAllThatFollows) {
  float* x = device(ones);
  EXPECT_EQ(copy(x, twos.data(), kFloats, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x, 0, sizeof(float), other), cudaSuccess);
  finish();
}

TEST_F(Streams, HostMemoryThatOneCopyFillsAndAnotherSends) {
  for (const bool waits : {true, false}) {
    float* from = device(twos);
    float* to = device(ones);
    Floats between(kFloats, 0.0f);
    EXPECT_EQ(copy(between.data(), from, kFloats, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    if (waits) {
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    }
    EXPECT_EQ(copy(to, between.data(), kFloats, cudaMemcpyHostToDevice, other), cudaSuccess);
    finish();
    EXPECT_EQ(host(to, 1)[0] == 2.0f, waits);
    if (!waits) expect_race("copy on stream", "copy on stream");
    EXPECT_TRUE(take_faults().empty());
  }
}

TEST_F(Streams, WhoReadsACopyTooEarlyReadsNonsense) {
  const float* from = device(ones);
  Floats to(4, 0.0f);
  EXPECT_EQ(copy(to.data(), from, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_NEAR(to[3], kPoison, 1e-18f);
  finish();
  EXPECT_EQ(to[3], 1.0f);
}

TEST_F(Streams, HostMemoryThatIsReusedTooEarlySendsSomethingElse) {
  float* to = device(ones);
  Floats from(4, 2.0f);
  EXPECT_EQ(copy(to, from.data(), 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  from[3] = 3.0f;
  EXPECT_EQ(host(to, 4)[3], 3.0f);
}

TEST_F(Streams, TheHostCannotTouchDeviceMemory) {
  float* x = device(ones);
  EXPECT_EXIT((void)*static_cast<volatile float*>(x), ::testing::ExitedWithCode(kFaultStatus),
              "the host touched device memory");
  EXPECT_EXIT(*static_cast<volatile float*>(x) = 1.0f, ::testing::ExitedWithCode(kFaultStatus),
              "the host touched device memory");
}

TEST_F(Streams, AQueryIsAnsweredWhenTheWorkHasRun) {
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  float* x = device(ones);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaMemsetAsync(x, 0, sizeof(float), stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  int queries = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady && queries < 100) ++queries;
  EXPECT_EQ(queries, 3);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);  // as on a device: a query leaves it
}

TEST_F(Streams, FreeingMemoryWaitsForItsWork) {
  float* x = device(ones);
  Floats out(1, 0.0f);
  EXPECT_EQ(copy(out.data(), x, 1, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
  EXPECT_EQ(out[0], 1.0f);
}

TEST_F(Streams, ACopyBeyondAnAllocationIsFound) {
  float* x = device(ones);
  EXPECT_EQ(cudaMemsetAsync(x, 0, kFloats * sizeof(float) + 1, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(take_faults().at(0).kind, FaultKind::kOutside);
}

TEST_F(Streams, WhatIsGoneIsRefused) {
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(live_events(), 0u);
  EXPECT_EQ(live_streams(), 1u);
}

}  // namespace
}  // namespace rubato::emulator
