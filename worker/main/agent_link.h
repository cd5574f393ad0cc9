// AgentLink: the socket to the agent that started us (RUBATO_AGENT_FD): frames of 4 bytes
// big-endian length and a body, WorkerCommand in, WorkerEvent out.
//
// Threads: run() belongs to the control thread; send() may be called from any thread and never
// blocks: what the agent does not read waits, at most kOutgoingFrames; beyond that the oldest are
// dropped, since each event carries the full standing.
#pragma once

#include "common/clock.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace rubato::worker {

constexpr std::size_t kOutgoingFrames = 4096;
constexpr std::size_t kAgentFrameBytes = 16u << 20;

class AgentLink {
 public:
  explicit AgentLink(int fd);  // takes it over
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void send(const std::string& body);
  // Until the agent is gone, or stop(). `on_tick` is called about every `tick`.
  void run(const std::function<void(const std::string&)>& on_frame,
           const std::function<void()>& on_tick, Duration tick);
  // Ends run() once what is queued was written, or after a second.
  void stop();

 private:
  bool read_some();
  bool write_some();
  void wake();

  int fd_;
  int wake_;  // eventfd
  std::string incoming_;
  std::mutex mutex_;
  std::deque<std::string> outgoing_;
  std::size_t written_ = 0;  // of the first outgoing frame
  bool stop_ = false;
};

}  // namespace rubato::worker
