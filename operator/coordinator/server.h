// Server: the port that agents dial. Accepts channels, reads the hello, checks certificate, token,
// versions and whether we lead, and then carries an agent's messages to its job.
//
// One task serves all agents: each channel that has news gets its turn, and in a turn at most
// kTurnFrames are taken, and no more than one beyond kTurnBytes, so that who floods us delays the
// others by that much. A channel whose job has no room is not read until there is some; its socket
// fills, and its agent waits.
// Private to this folder.
#pragma once

#include "operator/coordinator/coordinator.h"
#include "operator/coordinator/job_task.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace rubato::coordinator {

constexpr std::uint32_t kWireVersion = 1;  // we speak kWireVersionMin … kWireVersion
constexpr std::uint32_t kWireVersionMin = 1;
constexpr std::size_t kSessionsMax = 16384;  // beyond: connections are closed at once
constexpr auto kHelloLimit = 5s;
constexpr auto kFarewellLimit = 1s;  // for an agent to read why it is refused
constexpr std::size_t kTurnFrames = 16;
constexpr std::size_t kTurnBytes = 64 << 10;  // of them: the frame that reaches it is the last
constexpr std::size_t kCrowd = 50;
// Where there are many agents each beats less often, down to kBeatsPerSilence.
constexpr std::size_t kBeatsPerSecond = 20'000;
constexpr int kBeatsPerSilence = 5;
// Of those who have a certificate of a job and have not said hello: more than its pods are, and
// than this, are not let in.
constexpr std::size_t kGreetingMin = 64;
constexpr std::size_t kAgentFrameMax = 256
                                       << 10;  // bytes; the longest says whom 4 000 workers reach
constexpr std::size_t kAgentQueueMax = 512
                                       << 10;     // bytes of an agent's frames that wait to be read
constexpr std::size_t kAgentOutboxMax = 4 << 20;  // bytes that wait for an agent to read them

// Between two heartbeats of each of so many agents.
Duration heartbeat_period(const Timing& timing, std::size_t agents);

class Server {
 public:
  // What the coordinator answers for a job; called from the serving task.
  struct Standing {
    bool leading = false;
    std::uint64_t epoch = 0;
    std::shared_ptr<JobTask> job;  // null: not known (yet)
    std::size_t agents = 0;        // that may come, of all jobs
  };
  Server(const Dependencies& dependencies, std::function<Standing(const std::string& uid)> find);
  ~Server();
  Status start();
  net::Endpoint local() const;
  void renew(Credentials credentials);  // any thread
  // When agents of more than kCrowd pods, of whatever jobs, had come within a second, last: others
  // wait, here or in the network. Any thread.
  MonoTime crowded_at() const { return crowded_at_; }
  // All that had arrived by then is with its job: neither waits here, nor in a socket because the
  // thread that reads them is late. Any thread.
  MonoTime heard_until() const;

 private:
  enum class Stage { kGreeting, kMember, kFarewell };
  struct Session {
    std::shared_ptr<net::Channel> channel;
    Stage stage = Stage::kGreeting;
    MonoTime limit{};  // kGreeting, kFarewell: it ends. kMember: so it does, if its job had no room
    std::string identity;  // the job's uid, by the peer's certificate
    std::string pod_uid;
    std::shared_ptr<JobTask> job;
    std::shared_ptr<std::atomic<bool>> is_queued;  // its turn comes
  };
  struct Inbox;  // which sessions have news; outlives us with the channels that know it

  void accept_all(const std::stop_token& stop);
  void serve_all(const std::stop_token& stop);
  void open(std::uint64_t id, std::shared_ptr<net::Channel> channel);
  void take_turn(std::uint64_t id);
  // Why the session is over; null: it is not.
  const char* take(std::uint64_t id, Session& session, const std::string& frame, MonoTime arrived);
  void leave_greeting(const Session& session);
  void note_arrival(MonoTime now, const std::string& pod_uid);
  void end(std::uint64_t id, const std::string& why);
  void look_at_limits();
  // The hello's answer; a job when the agent is welcome.
  std::shared_ptr<JobTask> greet(net::Channel& channel, const wire::Hello& hello);
  bool note_leader(const wire::Hello& hello, const Standing& standing);
  std::string seal(std::uint64_t epoch, const std::string& identity) const;
  void refuse(net::Channel& channel, const char* reason, const std::string& message,
              bool permanent);
  Counter& refusals(const char* reason);
  void count_refused(const char* reason);
  std::string signed_by_us(const std::string& message) const;
  void answer(net::Channel& channel, const wire::CoordinatorMessage& message);

  const Dependencies dependencies_;
  Executor& executor_;
  const std::function<Standing(const std::string&)> find_;
  Gauge& agents_;
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<net::Listener> listener_;
  mutable std::mutex master_key_mutex_;
  std::string master_key_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> open_{0};  // sessions, with those that wait in the inbox
  // The serving task's.
  std::unordered_map<std::uint64_t, Session> sessions_;
  std::set<std::uint64_t> limited_;                 // by `limit`
  std::map<std::string, std::size_t> greeting_of_;  // by identity; none is zero
  MonoTime second_began_{};
  std::set<std::string> arrived_;  // pods whose agents came since then; kCrowd and one, at most
  std::atomic<MonoTime> crowded_at_{MonoTime{}};
  std::set<std::uint64_t> full_;  // their jobs have no room
  Task acceptor_;
  Task server_;
};

}  // namespace rubato::coordinator
