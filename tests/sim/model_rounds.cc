// Rounds of a ModelWorker: compute, reduce, commit, apply.
#include "tests/sim/model_worker.h"

#include <algorithm>

namespace rubato::sim {
namespace {
constexpr std::size_t kLogKept = 2000;
}

void ModelWorker::prepare() {
  if (!planned_ || prepared_) return;
  const bool links =
      std::all_of(planned_->members.begin(), planned_->members.end(), [&](const WorkerTuple& id) {
        const Peer* peer = world_.find_peer(id);
        return peer != nullptr && peer->alive && world_.reaches(host_, peer->host) &&
               peer->planned >= planned_->number;
      });
  if (!links && planned_->is_member) return;
  prepared_ = true;
  standing_.set_prepared_generation(planned_->number);
  wire::WorkerEvent event;
  event.mutable_prepared()->set_generation(planned_->number);
  emit(std::move(event));
}

void ModelWorker::compute(MonoTime now) {
  if (is_cut_off() || suspected_) return;
  while (at_ == At::kCompute && !todo_.empty() && now >= due_) {
    accumulated_ += gradient(state_, todo_.front());
    held_.insert(todo_.front());
    todo_.erase(todo_.begin());
    standing_.set_micro_done(standing_.micro_done() + 1);
    due_ += times_.micro;
  }
}

void ModelWorker::work(MonoTime now) {
  prepare();
  if (at_ == At::kIdle || is_cut_off()) return;
  watch_links();
  if (suspected_) return;
  if (at_ == At::kForm) {
    const bool up = std::all_of(generation_.members.begin(), generation_.members.end(),
                                [&](const WorkerTuple& id) {
                                  const Peer* peer = world_.find_peer(id);
                                  return peer != nullptr && world_.reaches(host_, peer->host) &&
                                         peer->entered >= generation_.number;
                                });
    if (!up || now < due_) return;
    at_ = At::kCompute;
    due_ = now + times_.micro;
  }
  compute(now);
  if (at_ == At::kCompute && todo_.empty()) contribute();
  if (at_ == At::kReduce && reduce()) at_ = At::kCommit;
  if (at_ == At::kCommit) try_decide(now);
  standing_.set_phase_name(at_ == At::kCompute  ? "compute"
                           : at_ == At::kReduce ? "reduce"
                                                : "commit");
  publish();
}

void ModelWorker::contribute() {
  reduced_.reset();
  world_.contribute(generation_.number, state_.seq, self_, accumulated_);
  at_ = At::kReduce;
}

bool ModelWorker::reduce() {
  std::uint64_t sum = 0;
  for (const WorkerTuple& id : generation_.members) {
    const Post* post = world_.contribution(generation_.number, state_.seq, id);
    if (post == nullptr || !world_.reaches(host_, world_.peer(id).host)) return false;
    sum += post->sum;
  }
  reduced_ = sum;
  wire::CommitVote vote;
  vote.set_generation(generation_.number);
  vote.set_seq(state_.seq);
  vote.set_micro_batches(static_cast<std::uint32_t>(held_.size()));
  vote.set_overflow(world_.overflows(state_.seq));
  vote.set_prepared_generation(prepared_ ? planned_->number : 0);
  vote.set_checkpoint(wants_checkpoint_);
  vote.set_stop(wants_stop_);
  world_.vote(generation_.number, state_.seq, self_, vote);
  return true;
}

void ModelWorker::try_decide(MonoTime now) {
  wire::CommitRecord record;
  record.set_seq(state_.seq);
  record.set_step(state_.step);
  bool overflow = false;
  std::uint64_t prepared = ~0ull;
  std::uint32_t micro = 0;
  for (const WorkerTuple& id : generation_.members) {
    const Post* post = world_.ballot(generation_.number, state_.seq, id);
    if (post == nullptr || !world_.reaches(host_, world_.peer(id).host)) return;
    overflow = overflow || post->vote.overflow();
    prepared = std::min<std::uint64_t>(prepared, post->vote.prepared_generation());
    micro += post->vote.micro_batches();
    record.set_checkpoint(record.checkpoint() || post->vote.checkpoint());
    record.set_stop(record.stop() || post->vote.stop());
  }
  record.set_micro_batches(micro);
  record.set_outcome(overflow ? wire::OUTCOME_REDO : wire::OUTCOME_APPLY);
  if (prepared > generation_.number) record.set_switch_generation(prepared);
  world_.decided(self_, generation_.number, state_, *reduced_, record);
  apply(record, *reduced_, now);
  after_commit(record, now);
}

void ModelWorker::apply(const wire::CommitRecord& record, std::uint64_t sum, MonoTime) {
  if (record.seq() != state_.seq) return world_.broken("a decision of another round is applied");
  Peer& me = world_.peer(self_);
  me.log[state_.seq] = record;
  me.sums[state_.seq] = sum;
  if (me.log.size() > kLogKept) {
    me.log.erase(me.log.begin());
    me.sums.erase(me.sums.begin());
  }
  state_ = applied(state_, sum, record.outcome());
  held_.clear();
  accumulated_ = 0;
  reduced_.reset();
  *standing_.mutable_last() = record;
  world_.applied_by(self_, state_);
  publish();
}

void ModelWorker::after_commit(const wire::CommitRecord& record, MonoTime now) {
  wire::WorkerEvent event;
  event.mutable_committed()->set_generation(generation_.number);
  *event.mutable_committed()->mutable_record() = record;
  const double seconds = std::chrono::duration<double>(now - last_commit_).count();
  standing_.set_step_seconds(last_commit_ == MonoTime{} ? 0.3 : std::min(seconds, 2.0));
  last_commit_ = now;
  event.mutable_committed()->set_step_seconds(standing_.step_seconds());
  emit(std::move(event));
  if (record.stop()) return stop(now);
  const bool due =
      record.outcome() == wire::OUTCOME_APPLY && state_.step % world_.shape().checkpoint_every == 0;
  if (generation_.rank == 0 && (due || record.checkpoint()) && !checkpoint_at_) {
    checkpoint_of_ = state_;
    checkpoint_at_ = now + times_.checkpoint;
  }
  if (record.switch_generation() != 0) {
    if (!planned_ || planned_->number != record.switch_generation())
      return world_.broken("a switch to a generation that was not told");
    if (planned_->is_member) return enter(*planned_, now);
    at_ = At::kIdle;
    planned_.reset();
    prepared_ = false;
    set_phase(wire::WORKER_STOPPED);
    return emit();
  }
  next_round(now);
}

void ModelWorker::stop(MonoTime now) {
  at_ = At::kIdle;
  if (generation_.rank == 0) {
    checkpoint_of_ = state_;
    checkpoint_at_ = now + times_.checkpoint;
    after_checkpoint_ = wire::WORKER_STOPPED;
    return;
  }
  set_phase(wire::WORKER_STOPPED);
  emit();
}

// A peer that is gone, or has left this generation behind, has cut the link.
void ModelWorker::watch_links() {
  if (suspected_) return;
  for (const WorkerTuple& id : generation_.members) {
    const Peer* peer = world_.find_peer(id);
    if (peer == nullptr || !world_.reaches(host_, peer->host)) continue;  // silence
    if (peer->alive && peer->fenced_below <= generation_.number) continue;
    suspected_ = true;
    wire::WorkerEvent event;
    event.mutable_suspect()->set_generation(generation_.number);
    event.mutable_suspect()->mutable_peer()->set_pod_uid(std::get<0>(id));
    event.mutable_suspect()->mutable_peer()->set_slot(std::get<1>(id));
    event.mutable_suspect()->mutable_peer()->set_incarnation(std::get<2>(id));
    event.mutable_suspect()->set_why("connection reset");
    return emit(std::move(event));
  }
}

}  // namespace rubato::sim
