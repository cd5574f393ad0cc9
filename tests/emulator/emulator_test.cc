// The emulator itself: every detector is shown to find what was planted, and to be silent about the
// same kernel without the fault; orders come from a seed.
#include "tests/emulator/block.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/emulator_fixture.h"
#include "tests/emulator/planted.h"
#include "tests/emulator/random.h"

#include <algorithm>
#include <set>

namespace rubato::emulator {
namespace {

class PlantedFault : public Emulator, public ::testing::WithParamInterface<Planted> {};

TEST_P(PlantedFault, IsFoundAndItsTwinIsNot) {
  const Planted& planted = GetParam();
  float* memory = device(Floats(kPlantedFloats, 1.0f));
  planted.right(stream, memory);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (const Fault& fault : take_faults()) ADD_FAILURE() << "the twin: " << fault.text;

  planted.wrong(stream, memory);
  EXPECT_EQ(cudaStreamSynchronize(stream), planted.error);
  const std::vector<Fault> faults = take_faults();
  ASSERT_FALSE(faults.empty());
  for (const Fault& fault : faults) {
    EXPECT_STREQ(name_of(fault.kind), name_of(planted.kind)) << fault.text;
    EXPECT_NE(fault.text.find("planted.cu:"), std::string::npos) << fault.text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFault, ::testing::ValuesIn(kPlanted, kPlanted + kPlantedCount),
                         [](const auto& one) { return std::string(one.param.kernel); });

TEST_F(Emulator, NamesBothPlacesOfARace) {
  float* memory = device(Floats(kPlantedFloats, 1.0f));
  kPlanted[0].wrong(stream, memory);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<Fault> faults = take_faults();
  ASSERT_EQ(faults.size(), 1u);
  const std::string& text = faults[0].text;
  const std::size_t first = text.find("read_without_barrier");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_NE(text.find("read_without_barrier", first + 1), std::string::npos) << text;
}

TEST_F(Emulator, OrdersOfEightSeedsGiveTheSameBits) {
  Floats x(8 * 256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  const float* in = device(x);
  float* out = device(Floats(8, 0.0f));
  const auto results = [&](bool right) {
    std::set<Floats> all;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      set_seed(seed);
      sum_blocks(stream, in, out, right);
      all.insert(host(out, 8));
    }
    return all;
  };
  EXPECT_EQ(results(true).size(), 1u);
  EXPECT_TRUE(take_faults().empty());
  EXPECT_GT(results(false).size(), 1u);  // so orders do differ
  EXPECT_EQ(take_faults().at(0).kind, FaultKind::kRace);
}

TEST_F(Emulator, UseOfFreedMemoryIsFound) {
  float* memory = device(Floats(kPlantedFloats, 1.0f));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  kPlanted[0].right(stream, memory);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(take_faults().at(0).kind, FaultKind::kOutside);
}

TEST_F(Emulator, AnErrorOfAKernelStays) {
  float* memory = device(Floats(kPlantedFloats, 1.0f));
  const auto beyond = std::find_if(kPlanted, kPlanted + kPlantedCount, [](const Planted& one) {
    return one.kind == FaultKind::kOutside;
  });
  beyond->wrong(stream, memory);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // it has not run
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, 1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  take_faults();
}

TEST_F(Emulator, LaunchesBeyondTheLimitsAreRefused) {
  const auto with = [&](dim3 blocks, dim3 threads, std::size_t shared_bytes) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return launch(config, {.drop = [](const void*) {}});
  };
  EXPECT_EQ(with(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with({1, 65536, 1}, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, 32, kSharedUnasked + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Emulator, MemoryHasAnEnd) {
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, kDeviceBytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST_F(Emulator, WhatNobodyTookEndsTheProgram) {
  EXPECT_EXIT(
      {
        report(FaultKind::kRace, "planted");
        std::exit(0);
      },
      ::testing::ExitedWithCode(kFaultStatus), "emulator: race: planted");
}

}  // namespace
}  // namespace rubato::emulator
