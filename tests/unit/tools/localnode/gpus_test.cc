// On made-up trees of device nodes and of the driver's files.
#include "tools/localnode/gpus.h"

#include "tests/sentences.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::localnode {
namespace {

namespace fs = std::filesystem;

class GpusTest : public ::testing::Test {
 protected:
  GpusTest() {
    char path[] = "/tmp/rubato-gpus-XXXXXX";
    folder_ = mkdtemp(path);
    paths_ = {.devices = folder_ + "/dev", .driver = folder_ + "/driver"};
    fs::create_directories(paths_.devices);
    for (const char* name : {"nvidiactl", "nvidia-uvm"}) touch(name);
  }
  ~GpusTest() override { fs::remove_all(folder_); }

  void touch(const std::string& name) const { std::ofstream(paths_.devices + "/" + name) << ""; }
  // As driver 580 writes it.
  void add_gpu(const std::string& bus, int minor, const std::string& uuid = "GPU-aa",
               const std::string& product = "NVIDIA H100 80GB HBM3") const {
    const std::string gpu = paths_.driver + "/gpus/" + bus;
    fs::create_directories(gpu);
    std::ofstream(gpu + "/information")
        << "Model: \t\t " << product << "\nIRQ:   \t\t 45\nGPU UUID: \t " << uuid
        << "\nBus Type: \t PCIe\nBus Location: \t " << bus << "\nDevice Minor: \t " << minor
        << "\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t No\n";
    touch("nvidia" + std::to_string(minor));
  }
  std::string refused() const { return find_gpus(paths_).error().what(); }
  std::vector<Gpu> found() const { return find_gpus(paths_).value(); }
  GpuPool pool() const { return {found(), folder_ + "/locks"}; }

  std::string folder_;
  GpuPaths paths_;
};

TEST_F(GpusTest, AreFoundByTheirPciAddress) {
  add_gpu("0000:4a:00.0", 0, "GPU-bb");
  add_gpu("0000:0f:00.0", 1, "GPU-" + std::string(8, '?'));  // never used yet
  const std::vector<Gpu> gpus = found();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(minors_of(gpus), "1,0");
  EXPECT_EQ(gpus[0].uuid, "");
  EXPECT_EQ(gpus[1].uuid, "GPU-bb");
  EXPECT_EQ(gpus[1].ordinal, 1);
  EXPECT_EQ(gpus[1].product, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(product_label(gpus[1].product), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(product_label("Tesla T4 (x)"), "Tesla-T4-x");
  // Names and numbers are not mixed.
  EXPECT_EQ(visible_devices(gpus), "0,1");
  EXPECT_EQ(visible_devices({gpus[1]}), "GPU-bb");
}

TEST_F(GpusTest, OfAContainerAreThoseThatItWasGiven) {
  add_gpu("0000:0f:00.0", 0);
  add_gpu("0000:10:00.0", 1);
  fs::remove(paths_.devices + "/nvidia0");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].minor, 1);
  EXPECT_EQ(found()[0].ordinal, 0);  // CUDA does not see the other
}

TEST_F(GpusTest, WhatIsMissingIsNamedWithTheWayOut) {
  const auto says = [&](const char* text) {
    EXPECT_EQ(find_gpus(paths_).error().code(), Code::kNotFound);
    EXPECT_NE(refused().find(text), std::string::npos) << refused();
    EXPECT_NE(refused().find("What to do: "), std::string::npos) << refused();
  };
  says("this machine shows no NVIDIA GPU");
  add_gpu("0000:0f:00.0", 0);
  fs::remove(paths_.devices + "/nvidia0");
  says("has none of them");
  touch("nvidia0");
  fs::remove(paths_.devices + "/nvidia-uvm");
  says("CUDA needs ");
}

TEST_F(GpusTest, AreChosenByTheirNumbers) {
  for (int i = 0; i < 3; ++i) add_gpu("0000:0" + std::to_string(i) + ":00.0", i);
  const auto chosen = [&](const std::string& words) { return choose_gpus(found(), words); };
  EXPECT_EQ(minors_of(chosen("auto").value()), "0,1,2");
  EXPECT_EQ(minors_of(chosen("2,0").value()), "2,0");
  for (const char* wrong : {"", "3", "0,", "0,0", "x", "-1", "0 1", "all"})
    EXPECT_EQ(chosen(wrong).error().code(), Code::kInvalid) << wrong;
  EXPECT_NE(chosen("7").error().what().find("some of 0,1,2"), std::string::npos);
  add_gpu("0000:09:00.0", 3, "GPU-l4", "NVIDIA L4");
  EXPECT_EQ(chosen("auto").error().code(), Code::kInvalid);  // one label cannot name both
  EXPECT_EQ(minors_of(chosen("3").value()), "3");
}

TEST_F(GpusTest, AllNodesOfTheDriverAreForAPodThatHasSome) {
  add_gpu("0000:0a:00.0", 0);
  touch("null");
  EXPECT_EQ(gpu_device_names(paths_.devices),
            (std::vector<std::string>{"nvidia-uvm", "nvidia0", "nvidiactl"}));
  EXPECT_TRUE(gpu_device_names(folder_ + "/none").empty());
}

TEST_F(GpusTest, NoneIsGivenTwice) {
  for (int i = 0; i < 3; ++i) add_gpu("0000:0" + std::to_string(i) + ":00.0", i);
  const GpuPool mine = pool(), another_node = pool();
  GpuLease first = mine.take(2).value();
  EXPECT_EQ(minors_of(first.gpus()), "0,1");
  EXPECT_EQ(another_node.take(2).error().code(), Code::kExhausted);
  GpuLease second = another_node.take(1).value();
  EXPECT_EQ(minors_of(second.gpus()), "2");
  const Error full = mine.take(1).error();
  EXPECT_EQ(full.code(), Code::kExhausted);
  EXPECT_EQ(wrong_number(full.what()), "") << full.what();
  first = GpuLease();
  EXPECT_EQ(minors_of(mine.take(2).value().gpus()), "0,1");
  EXPECT_EQ(mine.take(4).error().code(), Code::kInvalid);
  EXPECT_TRUE(mine.take(0).value().gpus().empty());
}

// localnode was killed and started anew; a process of its pod hangs in the driver, say.
TEST_F(GpusTest, BelongToAPodUntilItsLastProcessIsGone) {
  add_gpu("0000:0f:00.0", 0);
  GpuLease lease = pool().take(1).value();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  lease = GpuLease();
  EXPECT_EQ(pool().take(1).error().code(), Code::kExhausted);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(pool().take(1).ok());
}

TEST_F(GpusTest, LocksAreOutOfTheWayOfAProgramsOwnDescriptors) {
  add_gpu("0000:0f:00.0", 0);
  const GpuLease lease = pool().take(1).value();
  ASSERT_EQ(lease.descriptors().size(), 1u);
  EXPECT_GE(lease.descriptors()[0], 100);
  EXPECT_NE(::fcntl(lease.descriptors()[0], F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace rubato::localnode
