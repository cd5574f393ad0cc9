// CoordinatorLink: keeps one connection to whoever leads. Dials the addresses of the list in turn
// with jittered backoff; once they have led nowhere for a while also its names, which cost a
// question to DNS, and the leader it knew last. Says once a minute why it reaches nobody. Follows
// NOT_LEADER, refuses leaders older than the newest it has obeyed, and gives up a connection that
// has gone silent. What arrives is handed to `deliver` from the link's own task.
#pragma once

#include "common/executor.h"
#include "common/net/channel.h"
#include "common/rng.h"
#include "worker/agent/agent.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace rubato::worker {

class CoordinatorLink {
 public:
  struct Hooks {
    // A serialised AgentMessage; what the newest leader that was obeyed said of itself.
    std::function<std::string(const std::string& token, std::uint64_t leader_epoch,
                              const std::string& leader_seal)>
        hello;
    std::function<void(Duration heartbeat)> welcomed;
    std::function<void(std::string frame)> deliver;  // a serialised CoordinatorMessage
    std::function<void(const std::string& reason)> refused;
  };
  CoordinatorLink(Executor& executor, net::Network& network, const AgentConfig& config,
                  Hooks hooks);
  ~CoordinatorLink();
  void start();
  void stop();

  // False when there is no leader to send to, or its queue is full: standings are sent again with
  // the next heartbeat, so nothing is lost that matters.
  bool send(std::string frame);
  bool is_connected() const;

 private:
  void run(std::stop_token stop);
  // Until the connection ends; the leader to try next, when the other side named one.
  std::optional<net::Endpoint> talk(net::Channel& channel, std::stop_token stop, bool& welcomed);
  void set_channel(std::shared_ptr<net::Channel> channel);
  void warn(const std::string& text);

  Executor& executor_;
  net::Network& network_;
  const AgentConfig& config_;
  Hooks hooks_;
  Rng rng_;
  std::vector<net::Endpoint> listed_;         // addresses first
  std::size_t listed_first_ = 0;              // of them, those that are dialed from the start
  std::uint64_t leader_epoch_ = 0;            // the link's task only, as
  std::string leader_seal_;                   // this and
  std::optional<net::Endpoint> last_leader_;  // this
  AgentCredentials credentials_;              // and this
  std::map<std::string, MonoTime> warned_;    // and this
  mutable std::mutex mutex_;
  std::shared_ptr<net::Channel> channel_;  // while welcomed
  std::shared_ptr<net::Channel> dialed_;   // also before, so that stop() can close it
  Task task_;
};

}  // namespace rubato::worker
