#include "tests/unit/worker/backend/kernel_bench.h"
#include "worker/backend/digest.h"

namespace rubato::worker::testing {
namespace {

class DeviceTest : public KernelBench {};

TEST_F(DeviceTest, ArenasAreZeroedAndAligned) {
  Arena arena = std::move(device->allocate(1000)).value();
  const Buffer a = arena.take(DType::kF32, 3);
  const Buffer b = arena.take(DType::kI32, 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.address()) % kDeviceAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.address()) % kDeviceAlignment, 0u);
  EXPECT_EQ(ints(b), std::vector<std::int32_t>(100, 0));
  EXPECT_DEATH(arena.take(DType::kF32, 200), "used_");
}

TEST_F(DeviceTest, SlicesCountElements) {
  const Buffer x = upload(std::vector<float>{1, 2, 3, 4, 5});
  EXPECT_EQ(floats(x.slice(1, 3)), (std::vector<float>{2, 3, 4}));
  EXPECT_DEATH(x.slice(3, 3), "count_");
}

TEST_F(DeviceTest, EventsPassAndViewsShareMemory) {
  const auto event = device->make_event();
  EXPECT_TRUE(event->is_done());
  event->record(*stream);
  EXPECT_TRUE(event->wait().ok());
  const Buffer x = upload(std::vector<float>{7});
  EXPECT_EQ(*static_cast<float*>(device->host_view(x)), 7.0f);
}

TEST_F(DeviceTest, KernelsRefuseOtherTypes) {
  EXPECT_DEATH(kernels().add(*stream, blank(DType::kBf16, 4), zeros(4), zeros(4)), "kF32");
}

TEST(OpenDevice, SaysWhatIsWrong) {
  EXPECT_EQ(open_device({.kind = "tpu"}).error().code(), Code::kInvalid);
  EXPECT_EQ(open_device({.kind = "cpu", .isa = "mmx"}).error().code(), Code::kInvalid);
  EXPECT_EQ(open_device({.kind = "cuda:x"}).error().code(), Code::kInvalid);
  // No GPU, no driver, no library, or no CUDA in this program: each is said, and none ends it.
  if (const auto gpu = open_device({.kind = "cuda"}); !gpu.ok()) {
    EXPECT_TRUE(gpu.error().code() == Code::kInvalid || gpu.error().code() == Code::kNotFound);
    EXPECT_NE(gpu.error().what().find("cuda"), std::string::npos) << gpu.error().what();
  }
}

TEST(OpenDevice, EachWorkerOfAPodHasAGpuOfItsOwn) {
  EXPECT_EQ(device_of_slot("cuda", 0), "cuda:0");
  EXPECT_EQ(device_of_slot("cuda", 3), "cuda:3");
  EXPECT_EQ(device_of_slot("cuda:1", 3), "cuda:1");
  EXPECT_EQ(device_of_slot("cpu", 3), "cpu");
}

TEST(DigestTest, SeesEveryByteAndTheOrder) {
  std::vector<unsigned char> bytes(100, 3);
  const std::uint64_t plain = digest_of(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 1;
    EXPECT_NE(digest_of(bytes.data(), bytes.size()), plain) << i;
    bytes[i] ^= 1;
  }
  EXPECT_NE(digest_of(bytes.data(), 99), plain);
  EXPECT_EQ(from_hex(to_hex(plain)), plain);
}

}  // namespace
}  // namespace rubato::worker::testing
