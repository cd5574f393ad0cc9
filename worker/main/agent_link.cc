#include "worker/main/agent_link.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::worker {

AgentLink::AgentLink(int fd) : fd_(fd), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_ >= 0);
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

AgentLink::~AgentLink() {
  ::close(fd_);
  ::close(wake_);
}

void AgentLink::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
}

void AgentLink::send(const std::string& body) {
  std::string frame(4, '\0');
  for (unsigned i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (24 - 8 * i));
  frame += body;
  {
    const std::lock_guard lock(mutex_);
    // The first may be half written, so the second is the oldest that can go.
    if (outgoing_.size() >= kOutgoingFrames) outgoing_.erase(outgoing_.begin() + 1);
    outgoing_.push_back(std::move(frame));
  }
  wake();
}

void AgentLink::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
}

void AgentLink::run(const std::function<void(const std::string&)>& on_frame,
                    const std::function<void()>& on_tick, Duration tick) {
  const SystemClock clock;
  MonoTime next_tick = clock.now() + tick;
  std::optional<MonoTime> last_chance;
  for (;;) {
    bool has_output = false;
    {
      const std::lock_guard lock(mutex_);
      has_output = !outgoing_.empty();
      if (stop_ && !last_chance) last_chance = clock.now() + 1s;
    }
    if (last_chance && (!has_output || clock.now() > *last_chance)) return;
    const auto events = static_cast<short>(POLLIN | (has_output ? POLLOUT : 0));
    std::array<pollfd, 2> entries{pollfd{fd_, events, 0}, pollfd{wake_, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - clock.now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (entries[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_, &count, sizeof count);
    }
    if (entries[0].revents != 0 && (!read_some() || !write_some())) return;
    while (incoming_.size() >= 4) {
      std::size_t size = 0;
      for (unsigned i = 0; i < 4; ++i) size = size << 8 | static_cast<unsigned char>(incoming_[i]);
      if (size > kAgentFrameBytes) return;
      if (incoming_.size() < 4 + size) break;
      const std::string body = incoming_.substr(4, size);
      incoming_.erase(0, 4 + size);
      on_frame(body);
    }
    if (clock.now() >= next_tick) {
      on_tick();
      next_tick = clock.now() + tick;
    }
  }
}

bool AgentLink::read_some() {
  std::array<char, 65536> bytes{};
  const auto got = ::recv(fd_, bytes.data(), bytes.size(), 0);
  if (got > 0) incoming_.append(bytes.data(), static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

bool AgentLink::write_some() {
  const std::lock_guard lock(mutex_);
  while (!outgoing_.empty()) {
    const std::string& frame = outgoing_.front();
    const auto sent = ::send(fd_, frame.data() + written_, frame.size() - written_, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    written_ += static_cast<std::size_t>(sent);
    if (written_ < frame.size()) return true;
    outgoing_.pop_front();
    written_ = 0;
  }
  return true;
}

}  // namespace rubato::worker
