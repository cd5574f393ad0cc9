#include "worker/script/progress_log.h"

#include "common/clock.h"

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr auto kWritePause = 200ms;    // between two states of the file
constexpr auto kReadOutLimit = 100ms;  // of what a program that is gone has printed

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads our output any more
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

struct ProgressLog::Impl {
  Impl(ProgressPattern p, std::string f, int o)
      : pattern(std::move(p)), file(std::move(f)), out(o) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (stop[1] >= 0) ::close(stop[1]);  // wakes the thread
    if (thread.joinable()) thread.join();
    for (const int fd : {stop[0], ends[0], ends[1]})
      if (fd >= 0) ::close(fd);
  }

  void run() {
    bool is_due = false;  // the file is behind
    while (true) {
      std::array<pollfd, 2> waits{{{stop[0], POLLIN, 0}, {ends[0], POLLIN, 0}}};
      const int limit = is_due ? static_cast<int>(kWritePause / 1ms) : -1;
      const int ready = ::poll(waits.data(), waits.size(), limit);
      if (waits[0].revents != 0 || (ready < 0 && errno != EINTR)) return;
      const bool has_more = ready > 0 && waits[1].revents != 0;
      if (has_more) take();
      is_due = (has_more && is_early()) || !write_file();
    }
  }

  void take() {
    std::uint64_t program = 0;
    {
      std::lock_guard lock(mutex);
      is_reading = true;
      program = programs;
    }
    if (std::exchange(line_of, program) != program) line.clear();
    const auto found = read_some();
    {
      std::lock_guard lock(mutex);
      is_reading = false;
      if (found && program == programs) newest = found;
    }
    is_read.notify_all();
  }

  bool is_early() {
    std::lock_guard lock(mutex);
    return clock.now() - written_at < kWritePause;
  }

  std::optional<ToldProgress> read_some() {
    std::array<char, 1 << 14> bytes;
    const auto got = ::read(ends[0], bytes.data(), bytes.size());
    if (got <= 0) return std::nullopt;
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    write_all(out, text);
    std::optional<ToldProgress> last;
    for (const char c : text) {
      if (c != '\n' && c != '\r') {
        if (line.size() < kProgressLineMost) line += c;
        continue;
      }
      if (const auto found = pattern.find(line)) last = found;
      line.clear();
    }
    return last;
  }

  bool write_file() {
    std::lock_guard lock(mutex);
    return write_newest();
  }

  // Locked. False: it cannot be written now, and what stands there stays.
  bool write_newest() {
    if (!newest || newest == written) return true;
    written_at = clock.now();
    const std::string hidden = file + ".new";
    std::ofstream beside(hidden, std::ios::trunc);
    beside << progress_line(*newest);
    beside.close();
    std::error_code failed;
    if (beside) std::filesystem::rename(hidden, file, failed);
    if (!beside || failed) return false;
    written = newest;
    return true;
  }

  void read_out(std::unique_lock<std::mutex>& lock) {
    is_read.wait_for(lock, kReadOutLimit, [&] {
      int left = 0;
      return !is_reading && (::ioctl(ends[0], FIONREAD, &left) != 0 || left == 0);
    });
  }

  void end() {
    std::unique_lock lock(mutex);
    read_out(lock);
    (void)write_newest();  // the thread goes on trying
  }

  void begin() {
    std::unique_lock lock(mutex);
    read_out(lock);
    ++programs;
    newest = written = std::nullopt;
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
  }

  const ProgressPattern pattern;
  const std::string file;
  const int out;
  std::array<int, 2> ends{-1, -1};
  std::array<int, 2> stop{-1, -1};
  // The thread's own:
  const SystemClock clock;
  std::string line;
  std::uint64_t line_of = 0;  // the program that printed it

  std::mutex mutex;
  std::condition_variable is_read;
  bool is_reading = false;
  std::uint64_t programs = 0;
  std::optional<ToldProgress> newest;
  std::optional<ToldProgress> written;
  MonoTime written_at{};
  std::thread thread;
};

ProgressLog::ProgressLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProgressLog::~ProgressLog() = default;

Result<std::unique_ptr<ProgressLog>> ProgressLog::open(ProgressPattern pattern, std::string file,
                                                       int out) {
  auto impl = std::make_unique<Impl>(std::move(pattern), std::move(file), out);
  if (::pipe2(impl->ends.data(), O_CLOEXEC) != 0 || ::pipe2(impl->stop.data(), O_CLOEXEC) != 0)
    return Error(Code::kUnavailable, fmt::format("pipe: {}", std::strerror(errno)));
  try {
    impl->thread = std::thread([raw = impl.get()] { raw->run(); });
  } catch (const std::system_error& failed) {
    return Error(Code::kUnavailable, fmt::format("starting a thread: {}", failed.what()));
  }
  return std::unique_ptr<ProgressLog>(new ProgressLog(std::move(impl)));
}

int ProgressLog::input() const { return impl_->ends[1]; }

void ProgressLog::end() { impl_->end(); }

void ProgressLog::begin() { impl_->begin(); }

}  // namespace rubato::worker
