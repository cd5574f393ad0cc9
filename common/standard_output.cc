#include "common/standard_output.h"

#include <cstdio>
#include <new>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace rubato {
namespace {

void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free number is this one. Opened the other way round, it refuses as a closed one.
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

bool has_reader() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) < 0 || (out.revents & POLLERR) == 0;
}

}  // namespace

int run_printing(const char* program, const std::function<int()>& run) {
  occupy_standard_streams();
  int code = 1;
  try {
    code = run();
  } catch (const std::system_error& error) {  // of fmt::print(), or of std::filesystem
    if (std::ferror(stdout) == 0) std::fprintf(stderr, "%s: %s\n", program, error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "%s: not enough memory: use a machine, or a container or limit (ulimit -v), "
                 "that has more\n",
                 program);
  }
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  if (has_reader())
    std::fprintf(stderr,
                 "%s: not all of the output could be written: standard output is closed, or its "
                 "disk is full (`df` shows which)\n",
                 program);
  return 1;
}

}  // namespace rubato
