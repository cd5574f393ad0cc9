#include "worker/agent/error_output.h"

#include "common/words.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::worker {

namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr std::size_t kPieceBytes = 4096;
constexpr int kPiecesMost = 64;  // between two looks for the end: others may write without a pause

// The same pipe, without a wait for its readers, which others who write there go on with; -1: it is
// none.
int unwaiting(int out) {
  struct stat about{};
  if (::fstat(out, &about) != 0 || !S_ISFIFO(about.st_mode)) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(out);
  return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

// Bars of progress begin their line anew with '\r'.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.find_first_not_of(" \t") != std::string_view::npos) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

Result<std::unique_ptr<ErrorOutput>> ErrorOutput::open(Executor& executor, const std::string& name,
                                                       int out) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return Error(Code::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  if (wake < 0) {
    const int error = errno;
    ::close(pipe[0]);
    ::close(pipe[1]);
    return Error(Code::kUnavailable, std::string("eventfd: ") + std::strerror(error));
  }
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  std::unique_ptr<ErrorOutput> output(new ErrorOutput(pipe[0], pipe[1], wake, out, unwaiting(out)));
  TRY(output->task_,
      executor.try_spawn(name, [self = output.get()](std::stop_token) { self->run(); }));
  return output;
}

ErrorOutput::~ErrorOutput() {
  if (read_ >= 0) finish();
  forget_write_end();
  ::close(wake_);
  if (out_of_our_own_ >= 0) ::close(out_of_our_own_);
}

void ErrorOutput::forget_write_end() {
  if (write_ >= 0) ::close(write_);
  write_ = -1;
}

std::string ErrorOutput::finish() {
  const std::uint64_t one = 1;
  while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) continue;
  task_ = Task();
  ::close(std::exchange(read_, -1));
  return last_words(tail_);
}

void ErrorOutput::run() {
  while (true) {
    std::array<pollfd, 2> waiting{{{read_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (!hand_on() || waiting[1].revents != 0) return;
  }
}

bool ErrorOutput::hand_on() {
  std::array<char, kPieceBytes> piece{};
  for (int i = 0; i < kPiecesMost; ++i) {
    const ssize_t n = ::read(read_, piece.data(), piece.size());
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    const std::string_view text(piece.data(), static_cast<std::size_t>(n));
    tail_ += text;
    if (tail_.size() > kErrorTailBytes) tail_.erase(0, tail_.size() - kErrorTailBytes);
    write_fully(text);
  }
  return true;
}

void ErrorOutput::write_fully(std::string_view text) {
  const int out = out_of_our_own_ >= 0 ? out_of_our_own_ : out_;
  while (!text.empty() && !is_stalled_) {
    const ssize_t n = ::write(out, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      std::array<pollfd, 2> waiting{{{out, POLLOUT, 0}, {wake_, POLLIN, 0}}};
      ::poll(waiting.data(), waiting.size(), -1);
      const bool is_to_end = waiting[1].revents != 0;
      if (is_to_end && waiting[0].revents == 0)
        is_stalled_ = ::poll(waiting.data(), 1, static_cast<int>(kErrorWaitMost / 1ms)) == 0;
    } else if (errno != EINTR) {
      return;  // nobody reads it any more
    }
  }
}

std::string last_words(std::string_view output) {
  std::string_view said;
  if (const auto lines = lines_of(output); !lines.empty()) said = lines.back();
  if (const auto traceback = output.rfind(kTraceback); traceback != std::string_view::npos) {
    const auto lines = lines_of(output.substr(traceback + kTraceback.size()));
    const auto is_outside = [](std::string_view line) {
      return line.front() != ' ' && line.front() != '\t';
    };
    const auto exception = std::ranges::find_if(lines, is_outside);
    if (exception != lines.end()) said = *exception;
  }
  return clipped(readable(said), kLastWordsBytes);
}

}  // namespace rubato::worker
