// The real NCCL, as far as it works without a GPU: its version, and an id.
#include "worker/backend/cuda/nccl.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

TEST(NcclLibraryTest, TellsItsVersionAndMakesIds) {
  auto nccl = cuda::open_nccl(0);
  ASSERT_TRUE(nccl.ok()) << nccl.error().to_string();
  EXPECT_TRUE(nccl.value()->name().starts_with("nccl-2.")) << nccl.value()->name();
  const auto one = nccl.value()->make_id();
  const auto other = nccl.value()->make_id();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->size(), 128u);
  EXPECT_NE(*one, *other);
}

TEST(NcclLibraryTest, ItSaysWhyItDoesNotConnect) {
  auto nccl = cuda::open_nccl(0);
  ASSERT_TRUE(nccl.ok());
  ThreadExecutor executor;
  const auto id = nccl.value()->make_id();
  ASSERT_TRUE(id.ok());
  const auto connected =
      nccl.value()->connect(executor, {id.value(), 1, 2}, executor.now() + 10ms, {});
  ASSERT_FALSE(connected.ok());
  EXPECT_FALSE(connected.error().what().empty());
}

}  // namespace
}  // namespace rubato::worker
