#include "common/standard_output.h"

#include <csignal>
#include <cstdio>
#include <new>
#include <string>

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato {
namespace {

struct Ended {
  int code = -1;
  std::string errors;
};

// In a process of its own, whose standard output `prepare` has changed.
Ended ended(const std::function<void()>& prepare, const std::function<int()>& run) {
  int errors[2];
  EXPECT_EQ(::pipe(errors), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(errors[1], STDERR_FILENO);
    prepare();
    ::_exit(run_printing("program", run));
  }
  ::close(errors[1]);
  Ended end;
  char piece[256];
  for (ssize_t n = 0; (n = ::read(errors[0], piece, sizeof piece)) > 0;)
    end.errors.append(piece, static_cast<std::size_t>(n));
  ::close(errors[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  return end;
}

int put() {
  std::fputs("words\n", stdout);
  return 0;
}
int print() {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  fmt::print("words\n");  // throws
  return 0;
}
void fill() { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); }
void hang_up() {
  ::signal(SIGPIPE, SIG_IGN);
  int pipe[2];
  if (::pipe(pipe) != 0) ::_exit(99);
  ::dup2(pipe[1], STDOUT_FILENO);
  ::close(pipe[0]);
}

TEST(RunPrinting, LostOutputIsAFailureThatIsSaidOnce) {
  for (const auto run : {put, print})
    for (const auto prepare : {fill, +[] { ::close(STDOUT_FILENO); }}) {
      const Ended end = ended(prepare, run);
      EXPECT_EQ(end.code, 1);
      EXPECT_TRUE(end.errors.starts_with("program: not all of the output")) << end.errors;
      EXPECT_EQ(end.errors.find('\n'), end.errors.size() - 1) << end.errors;
    }
}

TEST(RunPrinting, AReaderThatHasGoneKnows) {
  for (const auto run : {put, print}) {
    const Ended end = ended(hang_up, run);
    EXPECT_EQ(end.code, 1);
    EXPECT_EQ(end.errors, "");
  }
}

// What was being written is given back first: the stack is unwound.
TEST(RunPrinting, TooLittleMemoryIsSaid) {
  const Ended end = ended([] {},
                          []() -> int {
                            struct Last {
                              ~Last() { std::fputs("given back\n", stderr); }
                            } last;
                            throw std::bad_alloc();
                          });
  EXPECT_EQ(end.code, 1);
  EXPECT_TRUE(end.errors.starts_with("given back\nprogram: not enough memory: ")) << end.errors;
}

TEST(RunPrinting, ReturnsWhatWasReturned) {
  EXPECT_EQ(ended([] {}, [] { return 7; }).code, 7);
  EXPECT_EQ(ended(fill, [] { return 0; }).code, 0) << "nothing was printed";
  const Ended closed = ended([] { ::close(STDOUT_FILENO); },
                             [] { return ::open("/dev/null", O_WRONLY) == STDOUT_FILENO ? 9 : 0; });
  EXPECT_EQ(closed.code, 0) << "the number was free for a file";
}

}  // namespace
}  // namespace rubato
