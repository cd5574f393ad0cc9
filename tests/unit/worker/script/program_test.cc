// PosixProgram and HeldPort, with real processes.
#include "worker/script/program.h"

#include "tests/unit/worker/script/eventually.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

ProgramEnd end_of(Program& program) {
  std::optional<ProgramEnd> end;
  EXPECT_TRUE(eventually([&] { return (end = program.take_end()).has_value(); }))
      << "it did not end";
  return end.value_or(ProgramEnd{});
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
  EXPECT_NE(::kill(pid, 0), 0);
  ::unlink(file.c_str());
}

TEST(PosixProgram, WhatLeftItsGroupEndsWithIt) {
  const std::string file = testing::TempDir() + "away-" + std::to_string(::getpid());
  for (const bool is_told : {false, true}) {
    PosixProgram program;
    const std::string then = is_told ? "; sleep 1000" : "";
    ASSERT_TRUE(
        program.start({"sh", "-c", "setsid sleep 1000 & echo $! > " + file + then}, {}).ok());
    int pid = 0;
    ASSERT_TRUE(eventually([&] { return static_cast<bool>(std::ifstream(file) >> pid); }));
    if (is_told) {
      EXPECT_TRUE(eventually([&] { return ::getsid(pid) == pid; }));
      program.signal(SIGTERM);
    }
    (void)end_of(program);
    EXPECT_NE(::kill(pid, 0), 0);
    ::unlink(file.c_str());
  }
}

TEST(PosixProgram, WhatAShellHasStartedHasItsTimeToEnd) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("shell-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string saved = folder / "saved";
  const std::string begun = folder / "begun";
  std::ofstream(folder / "train.sh") << "trap 'sleep 0.5; echo > " << saved << "; exit 0' TERM\n"
                                     << "echo > " << begun << "\n"
                                     << "while :; do sleep 0.01; done\n";
  std::ofstream(folder / "run.sh") << "sh " << (folder / "train.sh").string() << "\nexit 0\n";
  PosixProgram program;
  ASSERT_TRUE(program.start({"sh", folder / "run.sh"}, {}).ok());
  ASSERT_TRUE(eventually([&] { return fs::exists(begun); }));
  program.signal(SIGTERM);
  EXPECT_EQ(end_of(program).signal, SIGTERM) << "of the shell";
  EXPECT_TRUE(fs::exists(saved));
  // Its time is over.
  fs::remove(begun);
  std::ofstream(folder / "train.sh") << "trap '' TERM\necho > " << begun << "\nsleep 1000\n";
  ASSERT_TRUE(program.start({"sh", folder / "run.sh"}, {}).ok());
  ASSERT_TRUE(eventually([&] { return fs::exists(begun); }));
  program.signal(SIGTERM);
  ::usleep(100'000);
  EXPECT_FALSE(program.take_end().has_value());
  program.signal(SIGKILL);
  (void)end_of(program);
  fs::remove_all(folder);
}

TEST(PosixProgram, ItsOrphansAreReapedWhileItRuns) {
  const std::string file = testing::TempDir() + "orphan-" + std::to_string(::getpid());
  PosixProgram program;
  ASSERT_TRUE(
      program.start({"sh", "-c", "(sleep 0.05 & echo $! > " + file + "); sleep 1000"}, {}).ok());
  int pid = 0;
  ASSERT_TRUE(eventually([&] { return static_cast<bool>(std::ifstream(file) >> pid); }));
  EXPECT_TRUE(eventually([&] {
    EXPECT_FALSE(program.take_end().has_value());
    return ::kill(pid, 0) != 0;
  }));
  ::unlink(file.c_str());
}

// As where it lies on a mount that is gone: who opens a file with a lease waits for its holder.
TEST(PosixProgram, OneThatCannotBeReadYetHoldsNothingUp) {
  const std::string file = testing::TempDir() + "leased-" + std::to_string(::getpid());
  ::unlink(file.c_str());
  std::ofstream(file) << "#!/bin/sh\nexit 3\n";
  ASSERT_EQ(::chmod(file.c_str(), 0755), 0);
  const auto before = ::signal(SIGIO, SIG_IGN);  // somebody wants to read it
  const int lease = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::fcntl(lease, F_SETLEASE, F_WRLCK), 0);
  PosixProgram program;
  ASSERT_TRUE(program.start({file}, {}).ok());
  EXPECT_FALSE(program.take_end().has_value());
  ::fcntl(lease, F_SETLEASE, F_UNLCK);
  EXPECT_EQ(end_of(program).exit_code, 3);
  ::close(lease);
  ::signal(SIGIO, before);
  ::unlink(file.c_str());
}

TEST(PosixProgram, ItsEndIsSeenWhereSIGCHLDWasIgnored) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  PosixProgram program;
  ASSERT_TRUE(program.start({"sh", "-c", "exit 3"}, {}).ok());
  EXPECT_EQ(end_of(program).exit_code, 3);
  ::signal(SIGCHLD, before);
}

// A program shares its output with the next one.
TEST(PosixProgram, ItsOutputWaitsForReadersAgain) {
  const int before = ::fcntl(STDOUT_FILENO, F_GETFL);
  ASSERT_EQ(::fcntl(STDOUT_FILENO, F_SETFL, before | O_NONBLOCK), 0);
  PosixProgram program;
  ASSERT_TRUE(program.start({"true"}, {}).ok());
  EXPECT_EQ(::fcntl(STDOUT_FILENO, F_GETFL) & O_NONBLOCK, 0);
  (void)end_of(program);
  ::fcntl(STDOUT_FILENO, F_SETFL, before);
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
