#include "tools/rubatoctl/doctor/machine_checks.h"

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

TEST(MachineChecks, ThisMachineIsSeen) {
  const MachineFacts facts = look_at_machine();
  EXPECT_GT(facts.cores, 0u);
  EXPECT_GT(facts.memory, 0u);
  EXPECT_GT(facts.room, 0u);
  EXPECT_FALSE(facts.instructions.empty());
}

}  // namespace
}  // namespace rubato::ctl
