#include "tools/rubatoctl/doctor/machine_checks.h"

#include "tests/sentences.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

MachineFacts good() {
  MachineFacts facts;
  facts.instructions = "AVX2";
  facts.cores = 2;
  facts.memory = facts.room = 8ULL << 30U;
  facts.folder = "/state";
  facts.open_files = 1024;
  facts.is_clock_synchronised = true;
  return facts;
}

// The findings of that machine that are not ok.
std::string faults(const MachineFacts& facts) {
  std::string text;
  for (const Finding& finding : check_machine(facts)) {
    EXPECT_EQ(wrong_number(report({finding})), "");
    if (finding.verdict == Verdict::kOk) continue;
    EXPECT_FALSE(finding.mend.empty()) << finding.subject;
    text += report({finding});
  }
  return text;
}

TEST(MachineChecks, AGoodMachineHasNoFault) {
  EXPECT_EQ(faults(good()), "");
  EXPECT_NE(report(check_machine(good())).find("ok       processor: workers use AVX2"),
            std::string::npos);
}

TEST(MachineChecks, EachFaultIsNamedWithTheWayOut) {
  const auto named = [](void (*spoil)(MachineFacts&), const char* said) {
    MachineFacts facts = good();
    spoil(facts);
    EXPECT_NE(faults(facts).find(said), std::string::npos) << faults(facts);
  };
  named([](MachineFacts& f) { f.instructions = ""; }, "WRONG    processor: has less than SSE4.1");
  named([](MachineFacts& f) { f.cores = 1; }, "warning  cores: 1 core\n");
  named([](MachineFacts& f) { f.memory = 1ULL << 29U; }, "warning  memory: 0.5 GiB available");
  named([](MachineFacts& f) { f.room = 0; }, "WRONG    disk: 0.0 GiB free for /state");
  named([](MachineFacts& f) { f.open_files = 256; }, "ulimit -n 16384");
  named([](MachineFacts& f) { f.missing_programs = {"rubato-agent", "rubato-worker"}; },
        "WRONG    programs: rubato-agent, rubato-worker not beside rubatoctl");
  named([](MachineFacts& f) { f.is_clock_synchronised = false; }, "warning  clock: is not known");
}

TEST(MachineChecks, AGpuThatCannotBeUsedIsNamedWithTheWayOut) {
  MachineFacts facts = good();
  const auto said = [&] {
    EXPECT_EQ(wrong_number(report(check_machine(facts))), "");
    return report({check_machine(facts).back()});
  };
  EXPECT_EQ(said(), "ok       GPU: no NVIDIA GPU; workers compute on the processors\n");
  facts.gpu_problem =
      "the driver knows of GPUs, and /dev has none of them\n  What to do: nvidia-smi";
  facts.nvidia_cards = 1;
  EXPECT_EQ(said(),
            "warning  GPU: 1 NVIDIA GPU, and NVIDIA's driver is not loaded\n"
            "         What to do: install NVIDIA's driver, 580 or newer (docs/gpu.md); without it "
            "workers compute on the processors\n");
  facts.nvidia_driver = "570.86.15";
  EXPECT_EQ(said().find("warning  GPU: NVIDIA driver 570.86.15 is too old\n         What to do: "),
            0u)
      << said();
  facts.nvidia_driver = "580.159.04";
  EXPECT_EQ(
      said(),
      "warning  GPU: NVIDIA driver 580.159.04: the driver knows of GPUs, and /dev has none of "
      "them\n         What to do: nvidia-smi\n");
  facts.nvidia_gpus = 1;
  EXPECT_EQ(said(),
            "ok       GPU: NVIDIA driver 580.159.04, 1 GPU; workers of `rubatoctl local up --gpus "
            "auto` compute on it\n");
}

TEST(MachineChecks, CardsAreCountedAsTheBusShowsThem) {
  std::string folder = ::testing::TempDir() + "/pci-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto device = [&](const std::string& address, const char* vendor, const char* kind) {
    std::filesystem::create_directory(folder + "/" + address);
    std::ofstream(folder + "/" + address + "/vendor") << vendor << "\n";
    std::ofstream(folder + "/" + address + "/class") << kind << "\n";
  };
  device("0000:01:00.0", "0x10de", "0x030200");  // an accelerator
  device("0000:01:00.1", "0x10de", "0x040300");  // its sound
  device("0000:02:00.0", "0x10de", "0x030000");
  device("0000:03:00.0", "0x1234", "0x030000");  // another maker's
  EXPECT_EQ(nvidia_cards(folder), 2u);
  EXPECT_EQ(nvidia_cards(folder + "/none"), 0u);
  std::filesystem::remove_all(folder);
}

TEST(MachineChecks, AContainerHasWhatItsCgroupSays) {
  namespace fs = std::filesystem;
  std::string folder = ::testing::TempDir() + "/cgroup-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto put = [&](const std::string& file, const char* text) {
    fs::create_directories(fs::path(folder + "/" + file).parent_path());
    std::ofstream(folder + "/" + file) << text << "\n";
  };
  const ContainerLimits none;
  EXPECT_EQ(container_limits(folder).memory, none.memory);
  EXPECT_EQ(container_limits(folder).cores, none.cores);
  put("memory.max", "max");
  put("cpu.max", "max 100000");
  EXPECT_EQ(container_limits(folder).memory, none.memory);
  EXPECT_EQ(container_limits(folder).cores, none.cores);
  put("memory.max", "536870912");
  put("cpu.max", "250000 100000");
  EXPECT_EQ(container_limits(folder).memory, 512u << 20U);
  EXPECT_EQ(container_limits(folder).cores, 2u);
  fs::remove_all(folder);
  put("memory/memory.limit_in_bytes", "1048576");
  put("cpu/cpu.cfs_quota_us", "50000");
  put("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(container_limits(folder).memory, 1u << 20U);
  EXPECT_EQ(container_limits(folder).cores, 1u);
  put("cpu/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(container_limits(folder).cores, none.cores);
  fs::remove_all(folder);
}

TEST(MachineChecks, ThisMachineIsSeen) {
  const MachineFacts facts = look_at_machine();
  EXPECT_GT(facts.cores, 0u);
  EXPECT_GT(facts.memory, 0u);
  EXPECT_GT(facts.room, 0u);
  EXPECT_FALSE(facts.instructions.empty());
}

}  // namespace
}  // namespace rubato::ctl
