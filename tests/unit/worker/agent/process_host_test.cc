#include "worker/agent/process_host.h"

#include "common/testing/refusing_executor.h"
#include "tests/unit/worker/script/eventually.h"
#include "worker/agent/error_output.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

std::string temporary_path(const std::string& name) {
  return std::filesystem::temp_directory_path().string() + "/rubato-" + name +
         std::to_string(::getpid());
}

// A program that speaks the frame format from a shell.
std::string script(const std::string& name, const std::string& body) {
  const std::string path = temporary_path(name);
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  ::chmod(path.c_str(), 0755);
  return path;
}

pid_t pid_in(const std::string& file) {
  pid_t pid = -1;
  std::ifstream(file) >> pid;
  return pid;
}

// One that has ended and that nobody waited for does not run any more.
bool is_running(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end).find(" Z ") == std::string::npos;
}

HostEvent wait_for(ProcessHost& host, Executor& executor) {
  auto event = host.next(executor.now() + 60s);
  if (!event.ok()) ADD_FAILURE() << event.error().to_string();
  return event.ok() ? *event : HostEvent{};
}

TEST(ProcessHost, FramesAndExitCodesArrive) {
  ThreadExecutor executor;
  const std::string path =
      script("frames", R"(printf '\000\000\000\002hi' >&$RUBATO_AGENT_FD; exit 3)");
  ProcessHost host(executor, {path});
  ASSERT_TRUE(host.spawn(1, 4).ok());
  const HostEvent message = wait_for(host, executor);
  EXPECT_EQ(message.message, "hi");
  const HostEvent exited = wait_for(host, executor);
  EXPECT_EQ(exited.kind, HostEvent::Kind::kExited);
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(exited.signal, 0);
  for (const HostEvent& event : {message, exited}) {
    EXPECT_EQ(event.slot, 1u);
    EXPECT_EQ(event.incarnation, 4u);
  }
  std::filesystem::remove(path);
}

// A shell that is killed leaves its program behind: as the old incarnation, beside the new one.
TEST(ProcessHost, WhatAWorkerHasStartedEndsWithIt) {
  ThreadExecutor executor;
  const std::string file = temporary_path("started");
  std::filesystem::remove(file);
  ProcessHost host(executor, {"sh", "-c", R"(test $RUBATO_INCARNATION = 1 || exit 0
sleep 30 & echo $! >"$0"
kill -9 $$)",
                              file});
  ASSERT_TRUE(host.spawn(0, 1).ok());
  EXPECT_EQ(wait_for(host, executor).signal, 9);
  const pid_t started = pid_in(file);
  ASSERT_GT(started, 1);
  EXPECT_TRUE(eventually([&] { return !is_running(started); }));
  const MonoTime begun = executor.now();
  ASSERT_TRUE(host.spawn(0, 2).ok());
  EXPECT_LT(executor.now() - begun, 15s) << "it waited for the old one's program";
  EXPECT_EQ(wait_for(host, executor).exit_code, 0);
  std::filesystem::remove(file);
}

// One that left the worker's group holds the worker's end of the pair; and as PID 1 the agent is
// the one that waits for it.
TEST(ProcessHost, AnOrphanThatLivesOnHoldsNothingUp) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  ThreadExecutor executor;
  const std::string file = temporary_path("orphan");
  std::filesystem::remove(file);
  MonoTime begun{};
  {
    ProcessHost host(executor, {"sh", "-c", R"(test $RUBATO_INCARNATION = 1 || exit 0
setsid sh -c 'echo $$ >"$0"; exec sleep 60' "$0" &
until test -s "$0"; do :; done)",
                                file});
    ASSERT_TRUE(host.spawn(0, 1).ok());
    EXPECT_EQ(wait_for(host, executor).kind, HostEvent::Kind::kExited);
    begun = executor.now();
    EXPECT_TRUE(host.spawn(0, 2).ok());
    EXPECT_EQ(wait_for(host, executor).kind, HostEvent::Kind::kExited);
  }
  EXPECT_LT(executor.now() - begun, 30s) << "it waited for the orphan";
  const pid_t orphan = pid_in(file);
  ASSERT_GT(orphan, 1);
  EXPECT_TRUE(is_running(orphan));
  ::kill(orphan, SIGKILL);
  EXPECT_EQ(::waitpid(orphan, nullptr, 0), orphan) << "it was ours to wait for";
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  std::filesystem::remove(file);
}

TEST(ProcessHost, CommandsReachTheWorkerAndAKilledOneIsSeen) {
  ThreadExecutor executor;
  // Answers the first frame by its own length, then waits for ever.
  const std::string path = script("echo", R"(head -c 6 <&$RUBATO_AGENT_FD >/dev/null
printf '\000\000\000\002ok' >&$RUBATO_AGENT_FD
exec sleep 1000)");
  ProcessHost host(executor, {path});
  ASSERT_TRUE(host.spawn(0, 1).ok());
  ASSERT_TRUE(host.send(0, "go").ok());
  EXPECT_EQ(wait_for(host, executor).message, "ok");
  host.kill(0);
  EXPECT_EQ(wait_for(host, executor).signal, 9);
  EXPECT_FALSE(host.send(0, "go").ok());
  ASSERT_TRUE(host.spawn(0, 2).ok());
  std::filesystem::remove(path);
}

TEST(ProcessHost, ACommandOfSeveralWordsIsLookedForInThePath) {
  ThreadExecutor executor;
  ProcessHost host(
      executor, {"sh", "-c", "test \"$0 $RUBATO_SLOT\" = 'a word 2' || exit 9; exit 4", "a word"});
  ASSERT_TRUE(host.spawn(2, 1).ok());
  EXPECT_EQ(wait_for(host, executor).exit_code, 4);
}

TEST(ProcessHost, TheEndOfAWorkerComesWithItsLastWords) {
  ThreadExecutor executor;
  // The second leaves one that is not of its group, and that holds its stderr open for long.
  for (const char* body : {"echo before >&2; printf 'no such layer' >&2; exit 4",
                           "setsid sleep 1000 & echo $! >&2; echo 'no such layer' >&2; exit 4"}) {
    const std::string path = script("words", body);
    ::testing::internal::CaptureStderr();
    {
      ProcessHost host(executor, {path});
      ASSERT_TRUE(host.spawn(0, 1).ok());
      const HostEvent end = wait_for(host, executor);
      EXPECT_EQ(end.kind, HostEvent::Kind::kExited);
      EXPECT_EQ(end.exit_code, 4);
      EXPECT_EQ(end.last_words, "no such layer");
    }
    const std::string passed_on = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(passed_on.find("no such layer") != std::string::npos) << passed_on;
    if (const int child = std::atoi(passed_on.c_str()); child > 1) ::kill(child, SIGKILL);
    std::filesystem::remove(path);
  }
}

TEST(ProcessHost, AWorkerMayWriteMoreThanIsRemembered) {
  ThreadExecutor executor;
  const std::string path = script("much", "head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1");
  ::testing::internal::CaptureStderr();
  ProcessHost host(executor, {path});
  ASSERT_TRUE(host.spawn(0, 1).ok());
  EXPECT_EQ(wait_for(host, executor).last_words, std::string(kLastWordsBytes, 'x') + " …");
  EXPECT_EQ(::testing::internal::GetCapturedStderr().size(), 3'000'000u);
  std::filesystem::remove(path);
}

TEST(ProcessHost, TheEndOfAWorkerIsSeenWhereSIGCHLDWasIgnored) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  ThreadExecutor executor;
  ProcessHost host(executor, {"sh", "-c", "exit 3"});
  ASSERT_TRUE(host.spawn(0, 1).ok());
  EXPECT_EQ(wait_for(host, executor).exit_code, 3);
  ::signal(SIGCHLD, before);
}

// Who reads the pod's log has stopped, and its pipe is full.
TEST(ErrorOutput, AnOutputThatNobodyReadsHoldsNoEndUp) {
  std::array<int, 2> log{};
  ASSERT_EQ(::pipe2(log.data(), O_CLOEXEC), 0);
  ::fcntl(log[1], F_SETFL, O_NONBLOCK);
  const std::string piece(4096, 'x');
  while (::write(log[1], piece.data(), piece.size()) > 0) continue;
  ::fcntl(log[1], F_SETFL, 0);
  ThreadExecutor executor;
  auto output = ErrorOutput::open(executor, "errors", log[1]);
  ASSERT_TRUE(output.ok());
  const std::string said = piece + "\nValueError: wrong\n";
  ASSERT_EQ(::write((*output)->write_end(), said.data(), said.size()),
            static_cast<ssize_t>(said.size()));
  (*output)->forget_write_end();
  EXPECT_EQ((*output)->finish(), "ValueError: wrong");
  EXPECT_EQ(::fcntl(log[1], F_GETFL) & O_NONBLOCK, 0) << "of others who write there";
  for (const int fd : log) ::close(fd);
}

TEST(LastWords, ATracebackEndsWithItsException) {
  const std::string traceback =
      "loading\nTraceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n"
      "    import transformer\nModuleNotFoundError: No module named 'transformer'\n";
  const std::string exception = "ModuleNotFoundError: No module named 'transformer'";
  EXPECT_EQ(last_words(traceback), exception);
  EXPECT_EQ(last_words(traceback + "Warning: a group was not destroyed\n"), exception);
  EXPECT_EQ(last_words("Traceback (most recent call last):\n  File \"a\"\nE: 1\n\nDuring handling "
                       "of the above exception, another exception occurred:\n\n" +
                       traceback),
            exception);
  EXPECT_EQ(last_words("Traceback (most recent call last):\n  File \"a"), "  File \"a");
}

TEST(LastWords, AreReadable) {
  EXPECT_EQ(last_words(""), "");
  EXPECT_EQ(last_words("\n \n\t\n"), "");
  EXPECT_EQ(last_words("first\nlast\n\n"), "last");
  EXPECT_EQ(last_words(" 10%\r 20%\r"), " 20%");
  EXPECT_EQ(last_words("\x1b[31mred\x1b[0m \xff\xc3"), " [31mred [0m ??");
  const std::string letters = last_words(std::string(kLastWordsBytes - 1, 'a') + "éé");
  EXPECT_EQ(letters, std::string(kLastWordsBytes - 1, 'a') + " …");
}

TEST(ProcessHost, AMissingProgramIsAnErrorThatNamesIt) {
  ThreadExecutor executor;
  const std::string text = script("text", "");
  std::filesystem::permissions(text, std::filesystem::perms::owner_read);
  for (const std::string& name :
       {std::string("/nonexistent/worker"), std::string("no-such-py"), text}) {
    ProcessHost host(executor, {name, "train.py"});
    const Status spawned = host.spawn(0, 1);
    ASSERT_FALSE(spawned.ok()) << name;
    EXPECT_EQ(spawned.error().code(), Code::kNotFound);
    EXPECT_TRUE(spawned.error().what().starts_with("starting " + name + ": "))
        << spawned.error().what();
  }
  std::filesystem::remove(text);
}

// PID 1 must not end for want of a thread: the pod and what runs well in it would go with it.
TEST(ProcessHost, AWorkerWithoutAThreadIsNotStartedAndTheOthersGoOn) {
  ThreadExecutor threads;
  std::atomic<int> left = 0;
  testing::RefusingExecutor few(threads, [&](const std::string&) { return left-- <= 0; });
  const std::string path = script("threads", "exec sleep 1000");
  ProcessHost host(few, {path});
  left = 3;
  ASSERT_TRUE(host.spawn(0, 1).ok());
  for (const int threads_left : {0, 1}) {
    left = threads_left;
    const Status spawned = host.spawn(1, 1);
    ASSERT_FALSE(spawned.ok());
    EXPECT_EQ(spawned.error().code(), Code::kUnavailable);
    EXPECT_FALSE(host.send(1, "hi").ok()) << "no program runs without its reader";
  }
  left = 2;
  EXPECT_TRUE(host.spawn(1, 1).ok());
  host.kill(0);
  EXPECT_EQ(wait_for(host, threads).slot, 0u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace rubato::worker
