// PosixProgram and HeldPort, with real processes.
#include "worker/script/program.h"

#include "tests/unit/worker/script/eventually.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
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

// Without torch: a module of that name stands in. What the script sees is the same either way.
TEST(PosixProgram, ASpareTakesTheScriptOver) {
  if (std::system("python3 -c ''") != 0) GTEST_SKIP() << "no python3";
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("spare-" + std::to_string(::getpid()));
  fs::create_directories(folder / "torch" / "nn");
  fs::create_directories(folder / "torch" / "utils");
  std::ofstream(folder / "torch/__init__.py")
      << "class optim:\n class AdamW:\n  def __init__(self, p): pass\n  def step(self): pass\n"
         "zeros = lambda n: [0] * n\n";
  std::ofstream(folder / "torch/nn/__init__.py") << "class Parameter(list): pass\n";
  for (const char* empty : {"torch/distributed.py", "torch/nn/parallel.py",
                            "torch/utils/__init__.py", "torch/utils/data.py"})
    std::ofstream(folder / empty).close();
  std::ofstream(folder / "script.py")
      << "import os, sys, pickle, __main__\n"
         "class Thing: pass\n"
         "pickle.loads(pickle.dumps(Thing()))\n"
         "open(sys.argv[1], 'a').write(repr((sys.argv[2:], sys.path[:2], __name__, __file__,\n"
         "    __main__.Thing is Thing, os.environ['RANK'], 'RUBATO_SPARE_FD' in os.environ,\n"
         "    sorted(n for n in globals() if not n.startswith('__')))) + '\\n')\n"
         "sys.exit(int(os.environ['RANK']))\n";
  std::map<std::string, std::string> variables{{"PYTHONPATH", folder}, {"RANK", "3"}};
  ::setenv("PYTHONPATH", folder.c_str(), 1);
  const fs::path said = folder / "said";
  const std::vector<std::string> command = {"python3", "-u", folder / "script.py",
                                            said,      "a",  "b c"};
  PosixProgram program;
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 3);
  program.prepare(command, variables);
  ASSERT_TRUE(eventually([&] { return program.has_spare(); }));
  variables["RANK"] = "4";
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_FALSE(program.has_spare());
  EXPECT_EQ(end_of(program).exit_code, 4);
  std::ifstream in(said);
  std::string cold, warm;
  std::getline(in, cold);
  std::getline(in, warm);
  EXPECT_NE(cold.find("'3'"), std::string::npos);
  cold.replace(cold.find("'3'"), 3, "'4'");
  EXPECT_EQ(warm, cold);
  // So does one of -m.
  const std::vector<std::string> module = {"python3", "-m", "script", said, "m"};
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  ASSERT_TRUE(program.start(module, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 4);
  EXPECT_TRUE(eventually([&] {
    program.prepare(module, variables);
    return program.has_spare();
  }));
  ASSERT_TRUE(program.start(module, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 4);
  EXPECT_FALSE(program.has_spare());
  std::getline(in, cold);
  std::getline(in, warm);
  EXPECT_FALSE(cold.empty());
  EXPECT_EQ(warm, cold);
  // With a safe path no folder of the script's is in front, and what PYTHONPATH names stays.
  ::setenv("PYTHONSAFEPATH", "1", 1);
  variables["PYTHONSAFEPATH"] = "1";
  variables["PYTHONPATH"] = (folder / "torch").string() + ":" + folder.string();
  ::setenv("PYTHONPATH", variables["PYTHONPATH"].c_str(), 1);
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 4);
  EXPECT_TRUE(eventually([&] {
    program.prepare(command, variables);
    return program.has_spare();
  }));
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 4);
  std::getline(in, cold);
  std::getline(in, warm);
  EXPECT_FALSE(cold.empty());
  EXPECT_EQ(warm, cold);
  ::unsetenv("PYTHONSAFEPATH");
  variables.erase("PYTHONSAFEPATH");
  // One that no longer fits is left, and one that cannot get ready is not missed.
  program.prepare(command, variables);
  variables["OMP_NUM_THREADS"] = "1";
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_EQ(end_of(program).exit_code, 4);
  ::unsetenv("PYTHONPATH");
  fs::current_path(before);
  fs::remove_all(folder);
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
