// Server: the port that agents dial. Accepts channels, reads the hello, checks the token, the
// versions and whether we lead, and then carries an agent's messages to its job.
// Private to this folder. One task accepts; one task per connection.
#pragma once

#include "operator/coordinator/coordinator.h"
#include "operator/coordinator/job_task.h"

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

namespace rubato::coordinator {

constexpr std::uint32_t kWireVersion = 1;  // we speak kWireVersionMin … kWireVersion
constexpr std::uint32_t kWireVersionMin = 1;
constexpr std::size_t kSessionsMax = 4096;  // beyond: connections are closed at once
constexpr auto kHelloLimit = 5s;

class Server {
 public:
  // What the coordinator answers for a job; called from session tasks.
  struct Standing {
    bool leading = false;
    std::uint64_t epoch = 0;
    std::shared_ptr<JobTask> job;  // null: not known (yet)
  };
  Server(const Dependencies& dependencies, std::function<Standing(const std::string& uid)> find);
  ~Server();
  Status start();
  net::Endpoint local() const;

 private:
  struct Connection {
    std::shared_ptr<net::Channel> channel;
    Task task;
  };
  void accept_all(const std::stop_token& stop);
  void serve(std::uint64_t id, const std::shared_ptr<net::Channel>& channel);
  // The hello's answer; a job when the agent is welcome.
  std::shared_ptr<JobTask> greet(net::Channel& channel, const wire::Hello& hello);
  bool note_leader(const wire::Hello& hello, const Standing& standing);
  std::string seal(std::uint64_t epoch, const std::string& identity) const;
  void refuse(net::Channel& channel, const char* reason, const std::string& message,
              bool permanent);
  void answer(net::Channel& channel, const wire::CoordinatorMessage& message);
  void reap();

  const Dependencies dependencies_;
  Executor& executor_;
  const std::function<Standing(const std::string&)> find_;
  std::unique_ptr<net::Listener> listener_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::list<Connection> connections_;
  std::uint64_t next_session_ = 1;
  Task acceptor_;
};

}  // namespace rubato::coordinator
