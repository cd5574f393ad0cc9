#include "tools/rubatoctl/local/process.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace rubato::ctl {
namespace {

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() {
    std::string name = ::testing::TempDir() + "/process-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~ProcessTest() override { std::filesystem::remove_all(folder_); }
  ProcessSpec shell(const std::string& script) const {
    return {{"/bin/sh", "-c", script}, folder_ + "/log", folder_ + "/pid"};
  }
  std::string text(const std::string& file) const {
    std::ostringstream out;
    out << std::ifstream(folder_ + "/" + file).rdbuf();
    return out.str();
  }
  MonoTime soon() { return executor_.now() + 60s; }

  ThreadExecutor executor_;
  std::string folder_;
};

TEST_F(ProcessTest, RunsAndIsFoundAgainByItsPidFile) {
  const auto id = start_process(shell("echo started; exec sleep 600"));
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(read_pid_file(folder_ + "/pid"), *id);
  EXPECT_TRUE(is_running(*id));
  const MonoTime deadline = soon();
  while (text("log").empty() && executor_.now() < deadline) executor_.sleep_for(1ms);
  EXPECT_EQ(text("log"), "started\n");
  EXPECT_TRUE(send_signal(*id, SIGTERM, false));
  EXPECT_TRUE(wait_for_exit(executor_, *id, deadline));
  EXPECT_FALSE(send_signal(*id, SIGTERM, false));
}

TEST_F(ProcessTest, ARecycledPidIsNotOurs) {
  auto id = start_process(shell("exec sleep 600"));
  ASSERT_TRUE(id.ok());
  ProcessId other = *id;
  other.start_ticks += 1;
  EXPECT_FALSE(is_running(other));
  EXPECT_FALSE(send_signal(other, SIGKILL, true));
  other = *id;
  other.boot = "another";
  EXPECT_FALSE(is_running(other));
  EXPECT_TRUE(is_running(*id));
  EXPECT_TRUE(send_signal(*id, SIGKILL, true));
  EXPECT_TRUE(wait_for_exit(executor_, *id, soon()));
}

TEST_F(ProcessTest, APowerCutTakesTheGroup) {
  const auto id = start_process(shell("sleep 600 & echo $! >" + folder_ + "/child.new; mv " +
                                      folder_ + "/child.new " + folder_ + "/child; wait"));
  ASSERT_TRUE(id.ok());
  const MonoTime deadline = soon();
  while (text("child").empty() && executor_.now() < deadline) executor_.sleep_for(1ms);
  const int child = std::stoi(text("child"));
  EXPECT_TRUE(send_signal(*id, SIGKILL, true));
  EXPECT_TRUE(wait_for_exit(executor_, *id, soon()));
  // Nobody reaps the orphan in a container without init: dead is gone or a zombie.
  const auto is_dead = [&] {
    std::string stat;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/stat"), stat);
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  };
  while (!is_dead() && executor_.now() < deadline) executor_.sleep_for(1ms);
  EXPECT_TRUE(is_dead());
}

TEST_F(ProcessTest, AProgramThatIsMissingIsSaid) {
  const auto id = start_process({{folder_ + "/nothing"}, folder_ + "/log", folder_ + "/pid"});
  ASSERT_FALSE(id.ok());
  EXPECT_NE(id.error().what().find("No such file"), std::string::npos);
  EXPECT_FALSE(read_pid_file(folder_ + "/pid"));
}

TEST_F(ProcessTest, NothingIsLeftWhereThePidFileCannotBeWritten) {
  ProcessSpec spec = shell("echo ran >" + folder_ + "/ran; exec sleep 600");
  spec.pid_file = folder_ + "/nowhere/pid";
  const auto id = start_process(spec);
  ASSERT_FALSE(id.ok());
  EXPECT_NE(id.error().what().find("cannot write " + spec.pid_file), std::string::npos)
      << id.error().what();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no child, not even a dead one
  EXPECT_EQ(errno, ECHILD);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ran"));
}

TEST_F(ProcessTest, RunProgram) {
  EXPECT_TRUE(run_program(executor_, {"/bin/sh", "-c", "echo hello"}, folder_ + "/out", {}).ok());
  EXPECT_EQ(text("out"), "hello\n");
  EXPECT_EQ(run_program(executor_, {"/bin/sh", "-c", "exit 3"}, "", {}).error().what(),
            "/bin/sh ended with status 3");
  EXPECT_EQ(run_program(executor_, {"/bin/sleep", "600"}, "", [] { return true; }).error().code(),
            Code::kCancelled);
}

TEST(PidFile, Text) {
  const ProcessId id{42, 777, "b-o-o-t"};
  EXPECT_EQ(parse_process_id(to_text(id)), id);
  EXPECT_FALSE(parse_process_id(""));
  EXPECT_FALSE(parse_process_id("1 2 boot"));  // never init
}

TEST(StatLine, TheNameMayHoldAnything) {
  std::string line = "42 (a) b (c) S";
  for (int field = 4; field <= 21; ++field) line += " 0";
  EXPECT_EQ(start_ticks_of(line + " 777 1"), 777u);
  EXPECT_FALSE(start_ticks_of("42 (x) S 1"));
}

}  // namespace
}  // namespace rubato::ctl
