// FakePods: agents and workers by hand, around one JobMachine. Messages are carried at once; the
// test says what workers answer and when the record's write is done.
#pragma once

#include "operator/coordinator/job_machine.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::coordinator {

inline constexpr auto kConfigure = wire::WorkerCommand::kConfigure;
inline constexpr auto kAbort = wire::WorkerCommand::kAbort;
inline constexpr auto kForm = wire::WorkerCommand::kForm;
inline constexpr auto kFollow = wire::WorkerCommand::kFollow;
inline constexpr auto kRequest = wire::WorkerCommand::kRequest;
inline constexpr auto kProbe = wire::WorkerCommand::kProbe;
inline constexpr auto kRetire = wire::WorkerCommand::kRetire;

class FakePods {
 public:
  explicit FakePods(int pods, Record record = {}, std::uint32_t start_workers = 0);

  // One worker a pod: slot 0, incarnation 1 unless restarted.
  void connect(int pod);  // with its standing as it is
  void connect_all();
  void disconnect(int pod);
  void say(int pod);  // an event without news: the standing
  void say(int pod, const std::function<void(wire::WorkerEvent&)>& news);
  void exit(int pod, int code, int signal);
  void begin_anew(int pod, std::optional<std::uint64_t> checkpoint =
                               {});  // its worker is killed, and the next process is ready
  void beat();                       // heartbeats of all that are connected
  // The same, spread evenly over `period`, with passes as a JobTask makes them.
  void beat_in_turn(Duration period);
  void after(Duration time);  // in heartbeat steps, so that the connected stay alive
  void swap_done();
  void swap_conflict();
  void make_ready(int pod);
  void follow(int pod);        // it is ready, was told to, and begins
  void catch_up(int pod);      // who follows
  void obey_forms();           // who was sent a Form trains in it
  void obey_aborts();          // who was sent an Abort stands still
  void answer_abort(int pod);  // below the newest generation, sent or not
  // Who was asked to stop does so with the next commit of anybody who was: commit_all().
  void obey_requests();
  // Until nothing is left to obey and nothing to write.
  void settle();
  void commit_all(double step_seconds = 0.1);  // one round, by all members
  void start_training();                       // connect, configure, form
  void start_many();  // the same of very many: a pass for all of them, not one for each word
  void start_first(int count);  // of more pods than that; the start waits no longer for the others

  void change_wish(const std::function<void(Wish&)>& change);
  const View& view() const { return machine.view(); }
  wire::WorkerStanding& standing(int pod) { return standings[static_cast<std::size_t>(pod)]; }
  // The newest order of that kind that a pod got since the last clear(); null: none.
  const wire::WorkerCommand* last(int pod, wire::WorkerCommand::BodyCase kind) const;
  std::size_t count(int pod, wire::WorkerCommand::BodyCase kind) const;
  bool was_restarted(int pod) const;
  void clear() { sent.clear(); }
  void break_link(int from, int to);  // `from` says so

  // Its step thread hangs: it says what it is asked, and takes up no Form.
  std::optional<int> deaf;
  bool counts_crashes = true;  // its agents do; those of builds before do not
  // Who is asked whom it reaches answers at once.
  bool answers_probes = true;
  std::function<bool(int from, int to)> reaches = [](int, int) { return true; };

  Wish wish;
  MonoTime now{std::chrono::hours(1)};
  bool asleep = false;  // inputs are taken down, and no pass comes
  std::vector<wire::WorkerStanding> standings;
  std::vector<bool> connected;
  std::vector<bool> wants_stop;
  // By generation. Whose standing has `members_of` is told changes of them.
  std::map<std::uint64_t, wire::Members> known_members;
  std::vector<std::uint32_t> crashes;
  std::vector<Send> sent;
  std::optional<Record> to_write;
  std::vector<Record> written;
  std::uint64_t checkpoints_skipped = 0;
  JobMachine machine;

 private:
  static Wish make_wish(int pods, std::uint32_t start_workers);
  void collect();
  void answer(int pod, const wire::Probe& probe);
  static int pod_of(const std::string& uid);
  static std::string uid(int pod) { return "uid-" + std::to_string(pod); }
};

}  // namespace rubato::coordinator
