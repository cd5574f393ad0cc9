#include "operator/coordinator/job_task.h"

#include "common/log.h"
#include "common/words.h"
#include "operator/api/resources.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {
constexpr Duration kLoadBackoffFirst = 20ms;
constexpr Duration kLoadBackoffMax = 2s;
template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;
}  // namespace

JobTask::JobTask(Executor& executor, kube::Client& client, Timing timing, Wish wish,
                 std::uint64_t seen_step, std::uint64_t epoch, World world, Hooks hooks)
    : executor_(executor),
      client_(client),
      timing_(timing),
      seen_step_(seen_step),
      epoch_(epoch),
      world_(std::move(world)),
      hooks_(std::move(hooks)),
      job_(wish.job),
      uid_(wish.uid),
      wakeup_(executor.make_condition()),
      write_asked_(executor.make_condition()),
      wish_(std::move(wish)) {
  index_wish();
}

JobTask::~JobTask() {
  ask_to_stop();
  join();
}

Status JobTask::start() {
  TRY(writer_, executor_.try_spawn("record", [this](std::stop_token stop) { write(stop); }));
  TRY(thinker_, executor_.try_spawn("job", [this](std::stop_token stop) { think(stop); }));
  return ok();
}

void JobTask::ask_to_stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [pod, session] : sessions_) session.channel->close();
  }
  thinker_.request_stop();
  writer_.request_stop();
  wake();
  write_asked_->notify_all();
}

void JobTask::join() {
  thinker_.join();
  writer_.join();
}

void JobTask::ensure(const Wish& wish) {
  {
    const std::lock_guard lock(mutex_);
    if (wish == wish_) return;
    wish_ = wish;
    index_wish();
    put({executor_.now(), wish});
  }
  wake();
}

void JobTask::index_wish() {
  wished_uids_.clear();
  for (const Wish::Pod& pod : wish_.pods) wished_uids_.insert(pod.uid);
  std::erase_if(turned_away_, [&](const auto& e) { return !wished_uids_.contains(e.first); });
}

bool JobTask::knows_pod(const std::string& pod_uid) const {
  const std::lock_guard lock(mutex_);
  return wished_uids_.contains(pod_uid);
}

std::size_t JobTask::pod_count() const {
  const std::lock_guard lock(mutex_);
  return wish_.pods.size();
}

void JobTask::note_pod(const std::string& pod_name) {
  const std::optional<std::int64_t> ordinal = api::ordinal_of(job_.name, pod_name);
  const std::lock_guard lock(mutex_);
  if (ordinal) highest_ordinal_ = std::max(highest_ordinal_, *ordinal);
}

void JobTask::turn_away(const wire::Hello& hello, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto pod = std::ranges::find(wish_.pods, hello.pod_uid(), &Wish::Pod::uid);
    if (pod == wish_.pods.end()) return;
    Refusal refusal{.pod = pod->name,
                    .pod_uid = pod->uid,
                    .node = pod->node,
                    .reason = "NoCommonVersion",
                    .message = why};
    if (!turned_away_.try_emplace(pod->uid, std::move(refusal)).second) return;
  }
  if (hooks_.changed) hooks_.changed(job_);
}

View JobTask::view() const {
  const std::lock_guard lock(mutex_);
  View view = view_;
  for (const auto& [uid, refusal] : turned_away_)
    if (std::ranges::find(view.members, uid, &MemberView::pod_uid) == view.members.end())
      view.refused.push_back(refusal);
  view.highest_ordinal = highest_ordinal_;
  if (!write_problem_.empty()) view.reason = write_problem_;
  return view;
}

void JobTask::attach(std::uint64_t session, std::shared_ptr<net::Channel> channel,
                     wire::Hello hello, std::size_t bytes, MonoTime arrived) {
  std::shared_ptr<net::Channel> replaced;
  {
    const std::lock_guard lock(mutex_);
    turned_away_.erase(hello.pod_uid());
    Session& slot = sessions_[hello.pod_uid()];
    // Those that an agent gave up while we slept are all found at once, in any order.
    if (slot.id > session) return channel->close();
    if (!greeted_.insert(hello.pod_uid()).second) forget_earlier(hello.pod_uid());
    replaced = std::exchange(slot.channel, std::move(channel));
    slot.id = session;
    put({arrived, std::move(hello), bytes});
  }
  if (replaced) replaced->close();
  wake();
}

// While nothing is taken (a record that cannot be read), agents come again and again, each time
// with all they know: of each the last word counts.
void JobTask::forget_earlier(const std::string& pod_uid) {
  std::erase_if(inputs_, [&](const Input& input) {
    const auto* hello = std::get_if<wire::Hello>(&input.news);
    const auto* gone = std::get_if<Gone>(&input.news);
    const bool is_old = (hello != nullptr && hello->pod_uid() == pod_uid) ||
                        (gone != nullptr && gone->pod_uid == pod_uid);
    if (is_old) input_bytes_ -= input.bytes;
    return is_old;
  });
}

std::deque<JobTask::Input> JobTask::take_inputs() {
  greeted_.clear();
  input_bytes_ = 0;
  is_urgent_ = false;
  return std::exchange(inputs_, {});
}

bool JobTask::has_room() const {
  const std::lock_guard lock(mutex_);
  return stopping_ || (inputs_.size() < kInputsMax && input_bytes_ < kInputBytesMax);
}

bool JobTask::deliver(std::uint64_t session, const std::string& pod_uid, wire::AgentMessage message,
                      std::size_t bytes, MonoTime arrived) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(pod_uid);
    if (stopping_ || found == sessions_.end() || found->second.id != session) return false;
    const bool can_wait = message.has_heartbeat();
    wakes = inputs_.empty() || !can_wait || inputs_.size() + 1 == kBatchMax;
    put({arrived, Said{pod_uid, std::move(message)}, bytes}, can_wait);
  }
  if (wakes) wake();
  return true;
}

void JobTask::put(Input input, bool can_wait) {
  input_bytes_ += input.bytes;
  inputs_.push_back(std::move(input));
  is_urgent_ = is_urgent_ || !can_wait;
}

void JobTask::detach(std::uint64_t session, const std::string& pod_uid, const std::string& why,
                     MonoTime arrived) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(pod_uid);
    if (found == sessions_.end() || found->second.id != session) return;
    sessions_.erase(found);
    put({arrived, Gone{pod_uid, why}});
  }
  wake();
}

// ---- The thinking task
// -------------------------------------------------------------------------------

void JobTask::think(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::optional<JobMachine> machine = load(stop);
    if (!machine) return;
    serve(*machine, stop);
    if (stop.stop_requested()) return;
    // Begin again from what stands; agents come back and say hello.
    const std::lock_guard lock(mutex_);
    for (auto& [pod, session] : sessions_) session.channel->close();
    sessions_.clear();
    take_inputs();
  }
}

std::optional<JobMachine> JobTask::load(const std::stop_token& stop) {
  RecordStore store(executor_, client_, job_, uid_);
  Duration wait = kLoadBackoffFirst;
  for (;;) {
    if (stop.stop_requested()) return std::nullopt;
    const auto record = store.open(epoch_);
    if (record.ok()) {
      const std::lock_guard lock(mutex_);
      Record known = *record;  // which says how far it was when it was written
      known.step = std::max({known.step, seen_step_, view_.step});
      return JobMachine(timing_, wish_, known, executor_.now());
    }
    LOG_WARNING(kLog, "{}: cannot take the membership: {}", to_string(job_),
                record.error().to_string());
    if (const auto newer = store.newer_leader(); newer && hooks_.newer_leader)
      hooks_.newer_leader(*newer);
    {
      const std::lock_guard lock(mutex_);
      view_.reason = "cannot read the membership: " + record.error().what();
    }
    if (!executor_.sleep_for(wait, stop)) return std::nullopt;
    wait = std::min<Duration>(wait * 2, kLoadBackoffMax);
  }
}

void JobTask::serve(JobMachine& machine, const std::stop_token& stop) {
  while (!machine.must_reload()) {
    MonoTime due = std::max(machine.next_tick(), executor_.now());
    if (next_pass_) due = std::max(std::min(due, *next_pass_), executor_.now());
    std::deque<Input> batch;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && !stop.stop_requested() && !is_urgent_ && inputs_.size() < kBatchMax) {
        // Heartbeats alone wait for more of them.
        MonoTime until = due;
        if (!inputs_.empty())
          until = std::min(until, inputs_.front().arrived + machine.quiet_pace());
        if (executor_.now() >= until) break;
        wakeup_->wait_until(lock, until);
      }
      if (stopping_ || stop.stop_requested()) return;
      batch = take_inputs();
    }
    for (Input& input : batch) {
      feed(machine, std::move(input));
      if (machine.must_reload()) return;
    }
    const MonoTime now = executor_.now();
    if (now < due && now < machine.next_pass()) {
      next_pass_ = machine.next_pass();
      continue;
    }
    next_pass_.reset();
    judge(machine, due);
    carry_out(machine);
  }
}

void JobTask::feed(JobMachine& machine, Input input) {
  const MonoTime at = input.arrived;
  std::visit(Overloaded{
                 [&](const wire::Hello& hello) { machine.connected(at, hello); },
                 [&](const Said& said) { machine.message(at, said.pod_uid, said.message); },
                 [&](const Gone& gone) { machine.disconnected(at, gone.pod_uid, gone.why); },
                 [&](const Wish& wish) { machine.wish(executor_.now(), wish); },
                 [&](SwapResult result) { machine.swapped(result); },
             },
             input.news);
}

// Silence is judged up to the oldest word that still waits, and not over a time in which this
// process, or this task alone, slept. `due`: when the task was to run at the latest.
void JobTask::judge(JobMachine& machine, MonoTime due) {
  const MonoTime now = executor_.now();
  MonoTime heard = std::min(now, world_.heard_until());
  {
    const std::lock_guard lock(mutex_);
    if (!inputs_.empty()) heard = std::min(heard, inputs_.front().arrived);
  }
  MonoTime awake = world_.awake_since();
  if (now > due + kLateMost) awake = now;
  machine.awake(now, awake);
  machine.crowded(world_.crowded_at());
  machine.tick(now, heard);
}

void JobTask::carry_out(JobMachine& machine) {
  Outputs out = machine.take_outputs();
  std::vector<std::shared_ptr<net::Channel>> broken;
  {
    const std::lock_guard lock(mutex_);
    if (out.swap) to_write_ = {machine.record(), *out.swap};
    for (const std::string& pod : out.drops) {
      const auto found = sessions_.find(pod);
      // Its session has come since: its hello is not taken down yet.
      if (found == sessions_.end() || greeted_.contains(pod)) continue;
      broken.push_back(found->second.channel);
      sessions_.erase(found);
    }
    if (out.changed)
      view_ = machine.view();
    else
      static_cast<Progress&>(view_) = static_cast<const Progress&>(machine.view());
  }
  if (out.swap) write_asked_->notify_all();
  for (const Send& send : out.sends) {
    std::shared_ptr<net::Channel> channel;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sessions_.find(send.pod_uid);
      if (found != sessions_.end()) channel = found->second.channel;
    }
    if (!channel) continue;
    // A full queue means an agent that has not read for long: it says hello again.
    if (!channel->send(send.frame(), executor_.now()).ok()) broken.push_back(std::move(channel));
  }
  for (const auto& channel : broken) channel->close();
  if (hooks_.checkpoint_written)
    for (const double seconds : out.checkpoints_written) hooks_.checkpoint_written(seconds);
  if (out.checkpoints_skipped > 0 && hooks_.checkpoints_skipped)
    hooks_.checkpoints_skipped(out.checkpoints_skipped);
  if (!out.changed) return;
  for (const Change& change : machine.view().changes) {
    if (change.generation <= changes_seen_) continue;
    changes_seen_ = change.generation;
    if (hooks_.ended_change) hooks_.ended_change(change);
  }
  if (hooks_.changed) hooks_.changed(job_);
}

// ---- The writing task
// ----------------------------------------------------------------------------------

void JobTask::write(const std::stop_token& stop) {
  RecordStore store(executor_, client_, job_, uid_);
  Duration wait = kLoadBackoffFirst;
  for (;;) {
    std::pair<Record, Record> swap;
    {
      std::unique_lock lock(mutex_);
      write_asked_->wait_until(lock, executor_.now() + 10s,
                               [&] { return to_write_ || stopping_ || stop.stop_requested(); });
      if (stopping_ || stop.stop_requested()) return;
      if (!to_write_) continue;
      swap = *to_write_;
    }
    const Status written = store.swap(swap.first, swap.second, stop);
    std::string problem;
    if (!written.ok()) {
      LOG_WARNING(kLog, "{}: {}", to_string(job_), written.error().to_string());
      if (written.error().code() == Code::kConflict) {
        if (hooks_.conflict) hooks_.conflict();
      } else {
        problem =
            fmt::format("cannot write the membership of {}: {}",
                        counted(swap.second.members.size(), "worker"), written.error().what());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      write_problem_ = problem;
    }
    if (problem.empty()) {
      wait = kLoadBackoffFirst;
    } else {
      if (!executor_.sleep_for(wait, stop)) return;
      wait = std::min<Duration>(wait * 2, kLoadBackoffMax);
    }
    {
      const std::lock_guard lock(mutex_);
      to_write_.reset();
      put({executor_.now(), written.ok() ? SwapResult::kDone : SwapResult::kConflict});
    }
    wake();
  }
}

}  // namespace rubato::coordinator
