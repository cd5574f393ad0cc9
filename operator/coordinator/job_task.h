// JobTask: one job's coordinator at work. Feeds a JobMachine with what sessions, the controller and
// the record's writes bring, and carries out what it says. Two tasks: one thinks and sends, one
// writes the record, so that an Abort never waits for the API server.
// Private to this folder: includes the generated wire messages. Thread-safe.
#pragma once

#include "operator/coordinator/job_machine.h"
#include "operator/coordinator/record_store.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <variant>

namespace rubato::coordinator {

// What agents said and is not taken down. Full: sessions are not read, so agents' sockets fill.
constexpr std::size_t kInputsMax = 8192;
constexpr std::size_t kInputBytesMax = 32 << 20;  // of memory
constexpr std::size_t kBatchMax = 1024;           // so many heartbeats wait for no more
constexpr auto kInputWait = 5s;                   // then the session ends
constexpr auto kLateMost = 500ms;                 // of our own task; later: it has slept

class JobTask {
 public:
  struct Hooks {
    std::function<void(const kube::Key&)> changed;
    std::function<void(const Change&)> ended_change;  // for metrics
    std::function<void()> conflict;
    std::function<void(std::uint64_t count)> checkpoints_skipped;
    std::function<void(double seconds)> checkpoint_written;
    std::function<void(std::uint64_t epoch)> newer_leader;  // the record names it
  };
  // What the task reads of its surroundings; from its own thread.
  struct World {
    std::function<MonoTime()> awake_since;  // StallWatch's
    std::function<MonoTime()> heard_until;  // what agents had sent by then was delivered
    std::function<MonoTime()> crowded_at;   // Server's
  };
  JobTask(Executor& executor, kube::Client& client, Timing timing, Wish wish,
          std::uint64_t seen_step, std::uint64_t epoch, World world, Hooks hooks);
  ~JobTask();  // ask_to_stop(), join()
  // Begins both tasks. Once. kUnavailable: the system has no threads for them; it is of no use.
  Status start();
  // Ends all sessions, and both tasks soon. Idempotent; waits for nothing.
  void ask_to_stop();
  // After ask_to_stop(): waits until both have ended, as long as a request under way takes.
  // Idempotent; one thread at a time.
  void join();

  void ensure(const Wish& wish);
  bool knows_pod(const std::string& pod_uid) const;
  std::size_t pod_count() const;
  // An agent that holds the job's token gave this name, whether the pod is wanted or not.
  void note_pod(const std::string& pod_name);
  // An agent that holds the job's token is of a build that cannot be talked to: its pod is refused,
  // but for one of a member, which trains on whoever hears it.
  void turn_away(const wire::Hello& hello, const std::string& why);
  View view() const;

  // A session: at most one per pod, a later one (a higher number) replaces an earlier. `bytes`: of
  // memory that the message takes. `arrived`: when the session had it from its channel.
  void attach(std::uint64_t session, std::shared_ptr<net::Channel> channel, wire::Hello hello,
              std::size_t bytes, MonoTime arrived);
  // Room for what one more agent says.
  bool has_room() const;
  // False: the session should end.
  bool deliver(std::uint64_t session, const std::string& pod_uid, wire::AgentMessage message,
               std::size_t bytes, MonoTime arrived);
  void detach(std::uint64_t session, const std::string& pod_uid, const std::string& why,
              MonoTime arrived);

 private:
  struct Said {
    std::string pod_uid;
    wire::AgentMessage message;
  };
  struct Gone {
    std::string pod_uid;
    std::string why;
  };
  using News = std::variant<wire::Hello, Said, Gone, Wish, SwapResult>;
  struct Input {
    MonoTime arrived{};
    News news;
    std::size_t bytes = 0;  // of what an agent said
  };
  struct Session {
    std::uint64_t id = 0;
    std::shared_ptr<net::Channel> channel;
  };

  std::optional<MonoTime> next_pass_;  // the thinking task's: what was taken down waits for it

  void think(const std::stop_token& stop);
  void write(const std::stop_token& stop);
  std::optional<JobMachine> load(const std::stop_token& stop);
  void serve(JobMachine& machine, const std::stop_token& stop);
  void feed(JobMachine& machine, Input input);
  void judge(JobMachine& machine, MonoTime due);
  void carry_out(JobMachine& machine);
  void put(Input input, bool can_wait = false);  // under the lock, as the next two
  void forget_earlier(const std::string& pod_uid);
  std::deque<Input> take_inputs();
  void index_wish();  // under the lock, after each change of wish_
  void wake() { wakeup_->notify_all(); }

  Executor& executor_;
  kube::Client& client_;
  const Timing timing_;
  const std::uint64_t seen_step_;
  const std::uint64_t epoch_;
  const World world_;
  const Hooks hooks_;
  const kube::Key job_;
  const std::string uid_;
  std::unique_ptr<Condition> wakeup_;       // the thinking task's
  std::unique_ptr<Condition> write_asked_;  // the writing task's
  mutable std::mutex mutex_;
  bool stopping_ = false;
  Wish wish_;
  std::unordered_set<std::string> wished_uids_;  // of its pods
  View view_;
  std::string write_problem_;          // why the record could not be written; empty: it could
  std::int64_t highest_ordinal_ = -1;  // of pods whose agents came
  std::map<std::string, Refusal> turned_away_;  // by pod uid, while it is wanted
  std::deque<Input> inputs_;
  std::unordered_set<std::string> greeted_;  // pods whose hellos are in inputs_: of each the last
  bool is_urgent_ = false;                   // some are more than heartbeats
  std::size_t input_bytes_ = 0;              // of them all
  std::map<std::string, Session> sessions_;  // by pod uid
  std::optional<std::pair<Record, Record>> to_write_;
  std::uint64_t changes_seen_ = 0;  // generation of the newest reported Change
  Task thinker_;
  Task writer_;
};

}  // namespace rubato::coordinator
