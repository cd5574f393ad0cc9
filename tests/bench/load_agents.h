// LoadAgents: thousands of agents in one process, over real TLS, for the benchmark of the
// coordinator. Each beats, and its one worker does at once what it is told; steps take ten seconds.
#pragma once

#include "common/executor.h"
#include "common/net/tls_network.h"
#include "worker/protocol/wire.pb.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rubato::bench {

struct LoadJob {
  std::string uid;
  std::string token;
  net::TlsConfig tls;
  int agents = 0;
};

class LoadAgents {
 public:
  LoadAgents(Executor& executor, net::Endpoint coordinator, const std::vector<LoadJob>& jobs);
  ~LoadAgents();
  // The first agent of the first job is gone for good. Returns when all others of its job have a
  // Form of a later generation: a line that says when the fence and the Forms were there.
  std::string lose_one();

  static std::string pod_uid(const std::string& job_uid, int number);

 private:
  struct Agent {
    const LoadJob* job = nullptr;
    int number = 0;
    std::shared_ptr<net::Channel> channel;  // null: dials
    std::shared_ptr<std::atomic<bool>> is_queued;
    bool welcomed = false;
    bool gone = false;
    Duration period{};  // of its heartbeats, as the coordinator wants it
    MonoTime next_beat{};
    std::uint64_t beats = 0;
    wire::WorkerStanding standing;
    MonoTime formed{};
    MonoTime stepping{};  // since then, as all of its job's generation; on these:
    std::uint64_t base_seq = 0;
    std::uint64_t base_step = 0;
    MonoTime fenced{};  // the last Abort came: each agent of a cluster has a processor to see it
  };
  void dial(const std::stop_token& stop);
  void serve(const std::stop_token& stop);
  void read(std::size_t index, MonoTime arrived);
  void obey(Agent& agent, const wire::CoordinatorMessage& message, MonoTime arrived);
  void obey(Agent& agent, const wire::WorkerCommand& command, MonoTime arrived);
  void advance(Agent& agent, MonoTime now);
  void beat(Agent& agent, MonoTime now);
  void say(Agent& agent);
  void say_hello(std::size_t index, std::shared_ptr<net::Channel> channel);

  Executor& executor_;
  const net::Endpoint coordinator_;
  net::TlsNetwork network_;
  std::vector<Agent> agents_;  // the serving task's, but for those who dial
  struct Begun {
    std::uint64_t generation = 0;
    MonoTime at{};
  };
  std::map<const LoadJob*, Begun> begun_;  // the newest generation's first Form
  std::mutex mutex_;
  std::unique_ptr<Condition> news_;                      // for the serving task
  std::unique_ptr<Condition> calls_;                     // for those who dial
  std::vector<std::pair<std::size_t, MonoTime>> ready_;  // and when it was told so
  std::deque<std::size_t> to_dial_;
  std::deque<std::pair<std::size_t, std::shared_ptr<net::Channel>>> dialed_;
  std::atomic<bool> stopping_{false};
  std::vector<Task> tasks_;
};

}  // namespace rubato::bench
