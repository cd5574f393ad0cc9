// PosixProgram and HeldPort, with real processes.
#include "worker/script/program.h"

#include "common/clock.h"

#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

ProgramEnd end_of(Program& program) {
  const SystemClock clock;
  for (const MonoTime deadline = clock.now() + 20s; clock.now() < deadline;) {
    if (const auto end = program.take_end()) return *end;
    std::this_thread::sleep_for(5ms);
  }
  ADD_FAILURE() << "it did not end";
  return {};
}

TEST(PosixProgram, ItIsStartedWithItsVariablesAndItsEndIsTold) {
  PosixProgram program;
  ASSERT_TRUE(program.start({"/bin/sh", "-c", "exit $RANK"}, {{"RANK", "3"}}).ok());
  const ProgramEnd end = end_of(program);
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(to_text(end), "exited with status 3");
  EXPECT_FALSE(program.take_end().has_value()) << "once";
  ASSERT_TRUE(program.start({"sh", "-c", "kill -TERM $$"}, {}).ok());
  EXPECT_EQ(end_of(program).signal, SIGTERM);
}

TEST(PosixProgram, OneThatIsNotThereIsSaid) {
  PosixProgram program;
  const Status started = program.start({"/no/such/program"}, {});
  ASSERT_FALSE(started.ok());
  EXPECT_NE(started.error().what().find("/no/such/program"), std::string::npos);
  EXPECT_FALSE(program.take_end().has_value());
}

TEST(PosixProgram, WhatItLeavesBehindEndsWithIt) {
  const std::string file = testing::TempDir() + "left-" + std::to_string(::getpid());
  PosixProgram program;
  ASSERT_TRUE(program.start({"sh", "-c", "sleep 1000 & echo $! > " + file}, {}).ok());
  (void)end_of(program);
  int pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0);
  const SystemClock clock;
  for (const MonoTime deadline = clock.now() + 20s;
       ::kill(pid, 0) == 0 && clock.now() < deadline;) {
    std::string state;
    std::ifstream about("/proc/" + std::to_string(pid) + "/stat");
    for (int i = 0; i < 3; ++i) about >> state;
    if (state == "Z") break;  // nobody of ours reaps orphans here
    std::this_thread::sleep_for(5ms);
  }
  ::unlink(file.c_str());
}

TEST(HeldPort, NobodyElseGetsIt) {
  auto first = HeldPort::any();
  auto second = HeldPort::any();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->number(), 0);
  EXPECT_NE(first->number(), second->number());
  HeldPort moved = std::move(*first);
  EXPECT_NE(moved.number(), 0);
  EXPECT_EQ(first->number(), 0);
}

}  // namespace
}  // namespace rubato::worker
