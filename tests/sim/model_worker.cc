#include "tests/sim/model_worker.h"

#include <algorithm>

namespace rubato::sim {
namespace {
constexpr std::uint64_t kCheckpointEvery = 100;
constexpr std::size_t kLogKept = 2000;
}  // namespace

ModelWorker::ModelWorker(World& world, wire::WorkerId id, std::string host, WorkerTimes times,
                         std::uint64_t stop_steps,
                         std::function<void(const wire::WorkerEvent&)> emit)
    : world_(world),
      self_(tuple_of(id)),
      host_(std::move(host)),
      times_(times),
      stop_steps_(stop_steps),
      emit_(std::move(emit)) {
  *standing_.mutable_id() = std::move(id);
  standing_.mutable_listen()->set_host(host_);
  standing_.mutable_listen()->set_port(7);
  standing_.set_phase(wire::WORKER_STARTING);
  standing_.set_cpu("model");
  world_.peer(self_).host = host_;
  this->emit();
}

void ModelWorker::die() { world_.peer(self_).alive = false; }

void ModelWorker::emit(wire::WorkerEvent event) {
  publish();
  *event.mutable_standing() = standing_;
  wire::WorkerStanding& out = *event.mutable_standing();
  if (is_cut_off() && (out.phase() == wire::WORKER_TRAINING || out.phase() == wire::WORKER_PARKED))
    out.set_phase(wire::WORKER_ABORTED);
  emit_(event);
}

void ModelWorker::set_phase(wire::WorkerPhase phase) { standing_.set_phase(phase); }

// What others may see.
void ModelWorker::publish() {
  Peer& me = world_.peer(self_);
  me.fenced_below = standing_.fenced_below();
  me.has_state = standing_.has_state();
  me.state = state_;
  standing_.set_seq(state_.seq);
  standing_.set_step(state_.step);
  standing_.set_tokens(state_.step * 1000);
  standing_.set_reduced(reduced_.has_value());
  standing_.set_step_seconds(0.05);
  show_held();
}

void ModelWorker::show_held() {
  standing_.clear_held();
  for (const std::uint32_t m : held_) {
    const int n = standing_.held_size();
    if (n > 0 && standing_.held(n - 1).end() == m) {
      standing_.mutable_held(n - 1)->set_end(m + 1);
      continue;
    }
    wire::Range& range = *standing_.add_held();
    range.set_begin(m);
    range.set_end(m + 1);
  }
}

bool ModelWorker::step(MonoTime now) {
  while (!commands_.empty()) {
    const wire::WorkerCommand command = std::move(commands_.front());
    commands_.pop_front();
    if (!obey(command, now)) return false;
  }
  if (configured_at_ && now >= *configured_at_) {
    configured_at_.reset();
    set_phase(wire::WORKER_READY);
    standing_.set_fingerprint("f00d");
    standing_.set_has_checkpoint(!world_.checkpoints.empty());
    standing_.set_checkpoint_step(world_.checkpoints.empty() ? 0
                                                             : world_.checkpoints.rbegin()->first);
    emit();
  }
  if (checkpoint_at_ && now >= *checkpoint_at_) {
    checkpoint_at_.reset();
    world_.checkpoints[checkpoint_of_.step] = checkpoint_of_;
    standing_.set_has_checkpoint(true);
    standing_.set_checkpoint_step(checkpoint_of_.step);
    if (stop_after_checkpoint_ && !is_cut_off()) set_phase(wire::WORKER_STOPPED);
    stop_after_checkpoint_ = false;
    wire::WorkerEvent event;
    event.mutable_checkpoint_written()->set_step(checkpoint_of_.step);
    emit(std::move(event));
  }
  if (donor_) follow_on(now);
  work(now);
  return true;
}

// ---- Commands
// ----------------------------------------------------------------------------------------

bool ModelWorker::obey(const wire::WorkerCommand& command, MonoTime now) {
  switch (command.body_case()) {
    case wire::WorkerCommand::kConfigure:
      if (standing_.phase() == wire::WORKER_STARTING && !configured_at_)
        configured_at_ = now + times_.start;
      break;
    case wire::WorkerCommand::kAbort:
      abort(command.abort().below());
      break;
    case wire::WorkerCommand::kForm:
      form(command.form(), now);
      break;
    case wire::WorkerCommand::kFollow:
      follow(command.follow(), now);
      break;
    case wire::WorkerCommand::kRequest:
      wants_checkpoint_ = wants_checkpoint_ || command.request().checkpoint();
      wants_stop_ = wants_stop_ || command.request().stop();
      if (wants_stop_ && standing_.phase() == wire::WORKER_PARKED) stop(now);
      break;
    case wire::WorkerCommand::kRetire:
      return false;
    case wire::WorkerCommand::BODY_NOT_SET:
      break;
  }
  return true;
}

void ModelWorker::abort(std::uint64_t below) {
  standing_.set_fenced_below(std::max(standing_.fenced_below(), below));
  if (is_cut_off()) {
    at_ = At::kIdle;
    if (donor_ && follow_generation_ < below) {
      donor_.reset();
      set_phase(standing_.has_state() ? wire::WORKER_ABORTED : wire::WORKER_READY);
    }
  }
  if (planned_ && planned_->number < below) {
    planned_.reset();
    prepared_ = false;
    standing_.set_prepared_generation(0);
  }
  emit();
}

ModelWorker::Generation ModelWorker::generation_of(const wire::Form& form,
                                                   const WorkerTuple& self) {
  Generation g;
  g.number = form.generation();
  for (const wire::Member& member : form.members()) {
    if (tuple_of(member.id()) == self) {
      g.is_member = true;
      g.rank = g.members.size();
    }
    g.members.push_back(tuple_of(member.id()));
  }
  return g;
}

void ModelWorker::form(const wire::Form& form, MonoTime now) {
  if (form.generation() < standing_.fenced_below() || form.generation() <= standing_.generation())
    return;
  Generation next = generation_of(form, self_);
  if (form.mode() == wire::FORM_PLANNED) {
    planned_ = std::move(next);
    prepared_ = false;
    world_.peer(self_).planned = form.generation();
    return;
  }
  if (!next.is_member) return world_.broken("a Form for somebody who is no member");
  donor_.reset();
  if (form.mode() == wire::FORM_START) {
    state_ = {};
    if (form.from_checkpoint() && !world_.checkpoints.contains(form.checkpoint_step()))
      return world_.broken("told to load a checkpoint that is not there");
    if (form.from_checkpoint()) state_ = world_.checkpoints[form.checkpoint_step()];
    held_.clear();
    accumulated_ = 0;
    reduced_.reset();
    standing_.set_has_state(true);
    standing_.clear_last();
  } else if (state_.seq + 1 == form.base_seq() && reduced_ && form.has_decision()) {
    apply(form.decision(), *reduced_, now);
  } else if (state_.seq != form.base_seq() || !standing_.has_state()) {
    return world_.broken("a member is asked to level and cannot");
  }
  standing_.set_generation(form.generation());
  set_phase(form.parked() ? wire::WORKER_PARKED : wire::WORKER_TRAINING);
  generation_ = next;
  world_.peer(self_).entered = form.generation();
  suspected_ = prepared_ = false;
  planned_.reset();
  if (form.parked()) {
    at_ = At::kIdle;
    return emit();
  }
  std::vector<std::uint32_t> share;
  if (form.shares_size() > 0) {
    for (const wire::Range& range : form.shares(static_cast<int>(next.rank)).ranges())
      for (std::uint32_t m = range.begin(); m < range.end(); ++m) share.push_back(m);
  } else {
    const auto even =
        wire::even_share(static_cast<std::uint32_t>(next.rank),
                         static_cast<std::uint32_t>(next.members.size()), world_.micro_batches());
    for (std::uint32_t m = even.begin; m < even.end; ++m) share.push_back(m);
  }
  begin_round(std::move(share), now);
  if (standing_.phase() == wire::WORKER_FINISHED) return;
  at_ = At::kForm;
  due_ = now + times_.form;
  emit();
}

void ModelWorker::begin_round(std::vector<std::uint32_t> share, MonoTime now) {
  const bool foreign = std::any_of(held_.begin(), held_.end(), [&](std::uint32_t m) {
    return std::find(share.begin(), share.end(), m) == share.end();
  });
  if (foreign) {
    held_.clear();
    accumulated_ = 0;
  }
  todo_.clear();
  for (const std::uint32_t m : share)
    if (!held_.contains(m)) todo_.push_back(m);
  at_ = At::kCompute;
  due_ = now + times_.micro;
  if (state_.step >= stop_steps_) {
    at_ = At::kIdle;
    set_phase(wire::WORKER_FINISHED);
    if (generation_.rank == 0) {
      checkpoint_of_ = state_;
      checkpoint_at_ = now + times_.checkpoint;
    }
    emit();
  }
}

void ModelWorker::enter(Generation generation, MonoTime now) {
  generation_ = std::move(generation);
  standing_.set_generation(generation_.number);
  standing_.set_prepared_generation(0);
  world_.peer(self_).entered = generation_.number;
  planned_.reset();
  prepared_ = suspected_ = false;
  donor_.reset();
  set_phase(wire::WORKER_TRAINING);
  next_round(now);
  emit();
}

void ModelWorker::next_round(MonoTime now) {
  const auto even = wire::even_share(static_cast<std::uint32_t>(generation_.rank),
                                     static_cast<std::uint32_t>(generation_.members.size()),
                                     world_.micro_batches());
  std::vector<std::uint32_t> share;
  for (std::uint32_t m = even.begin; m < even.end; ++m) share.push_back(m);
  begin_round(std::move(share), now);
}

// ---- Joining
// ---------------------------------------------------------------------------------------------

void ModelWorker::follow(const wire::Follow& follow, MonoTime now) {
  if (follow.generation() < standing_.fenced_below()) return;
  at_ = At::kIdle;
  held_.clear();
  accumulated_ = 0;
  reduced_.reset();
  standing_.set_has_state(false);
  standing_.clear_last();
  set_phase(wire::WORKER_FOLLOWING);
  donor_ = tuple_of(follow.donor());
  follow_generation_ = follow.generation();
  pulled_ = caught_up_ = false;
  due_ = now + times_.pull;
  emit();
}

void ModelWorker::follow_on(MonoTime now) {
  const Peer* donor = world_.find_peer(*donor_);
  if (donor != nullptr && !world_.reaches(host_, donor->host)) return;  // silence
  const bool gone = donor == nullptr || !donor->alive || donor->fenced_below > follow_generation_;
  if (gone || (pulled_ && !donor->has_state)) {
    wire::WorkerEvent event;
    event.mutable_suspect()->set_generation(follow_generation_);
    event.mutable_suspect()->mutable_peer()->set_pod_uid(std::get<0>(*donor_));
    event.mutable_suspect()->mutable_peer()->set_slot(std::get<1>(*donor_));
    event.mutable_suspect()->mutable_peer()->set_incarnation(std::get<2>(*donor_));
    event.mutable_suspect()->set_why("donor is gone");
    donor_.reset();
    set_phase(standing_.has_state() ? wire::WORKER_ABORTED : wire::WORKER_READY);
    return emit(std::move(event));
  }
  if (!pulled_) {
    if (now < due_ || !donor->has_state) return;
    state_ = donor->state;
    pulled_ = true;
    standing_.set_has_state(true);
    if (state_.seq > 0 && donor->log.contains(state_.seq - 1))
      *standing_.mutable_last() = donor->log.at(state_.seq - 1);
    emit();
  }
  while (donor_ && donor->log.contains(state_.seq) && state_.seq < donor->state.seq) {
    const wire::CommitRecord record = donor->log.at(state_.seq);
    if (record.switch_generation() != 0 &&
        (!planned_ || planned_->number != record.switch_generation()))
      return;  // its own Form is on the way
    apply(record, donor->sums.at(state_.seq), now);
    if (record.switch_generation() != 0 && planned_->is_member) return enter(*planned_, now);
  }
  if (!caught_up_ && donor_ && state_.seq + 1 >= donor->state.seq) {
    caught_up_ = true;
    wire::WorkerEvent event;
    event.mutable_caught_up()->set_generation(follow_generation_);
    event.mutable_caught_up()->set_seq(state_.seq);
    emit(std::move(event));
  }
}

// ---- A round
// ---------------------------------------------------------------------------------------------

void ModelWorker::work(MonoTime now) {
  if (planned_ && !prepared_) {
    const bool links =
        std::all_of(planned_->members.begin(), planned_->members.end(), [&](const WorkerTuple& id) {
          const Peer* peer = world_.find_peer(id);
          return peer != nullptr && peer->alive && world_.reaches(host_, peer->host) &&
                 peer->planned >= planned_->number;
        });
    if (links || !planned_->is_member) {
      prepared_ = true;
      standing_.set_prepared_generation(planned_->number);
      wire::WorkerEvent event;
      event.mutable_prepared()->set_generation(planned_->number);
      emit(std::move(event));
    }
  }
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
  while (at_ == At::kCompute && (todo_.empty() || now >= due_)) {
    if (todo_.empty()) {
      contribute();
      break;
    }
    accumulated_ += gradient(state_, todo_.front());
    held_.insert(todo_.front());
    todo_.erase(todo_.begin());
    standing_.set_micro_done(standing_.micro_done() + 1);
    due_ += times_.micro;
  }
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
  event.mutable_committed()->set_step_seconds(0.05);
  emit(std::move(event));
  if (record.stop()) return stop(now);
  const bool due = record.outcome() == wire::OUTCOME_APPLY && state_.step % kCheckpointEvery == 0;
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
    stop_after_checkpoint_ = true;
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
