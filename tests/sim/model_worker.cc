#include "tests/sim/model_worker.h"

#include <algorithm>
#include <utility>

namespace rubato::sim {
namespace {
constexpr Duration kPoll = 10ms;    // while it waits for peers
constexpr Duration kGlance = 50ms;  // at its links, while it computes
constexpr Duration kIdle = 500ms;
}  // namespace

ModelWorker::ModelWorker(World& world, wire::WorkerId id, std::string host, WorkerTimes times,
                         std::function<void(const wire::WorkerEvent&)> emit)
    : world_(world),
      self_(tuple_of(id)),
      host_(std::move(host)),
      times_(times),
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

MonoTime ModelWorker::next_wake(MonoTime now) const {
  if (hangs_) return now + kIdle;
  if (!commands_.empty()) return now;
  MonoTime wake = now + kIdle;
  if (configured_at_) wake = std::min(wake, *configured_at_);
  if (checkpoint_at_) wake = std::min(wake, *checkpoint_at_);
  if (donor_ || (planned_ && !prepared_)) wake = std::min(wake, now + kPoll);
  if (is_cut_off() || suspected_) return std::max(wake, now + 1ms);
  if (at_ == At::kForm || at_ == At::kReduce || at_ == At::kCommit)
    wake = std::min(wake, now + kPoll);
  if (at_ == At::kCompute) {
    const auto left = static_cast<int>(todo_.empty() ? 0 : todo_.size() - 1);
    wake = std::min({wake, now + kGlance, due_ + left * times_.micro});
  }
  return std::max(wake, now + 1ms);
}

bool ModelWorker::step(MonoTime now) {
  if (hangs_) return true;
  compute(now);  // what was done before the commands came
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
    if (after_checkpoint_ && !is_cut_off()) set_phase(*after_checkpoint_);
    after_checkpoint_.reset();
    wire::WorkerEvent event;
    event.mutable_checkpoint_written()->set_step(checkpoint_of_.step);
    emit(std::move(event));
  }
  const bool is_idle =
      standing_.phase() == wire::WORKER_READY || standing_.phase() == wire::WORKER_ABORTED;
  if (next_follow_ && is_idle) follow(*std::exchange(next_follow_, std::nullopt), now);
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
      stop_following();
      set_phase(standing_.has_state() ? wire::WORKER_ABORTED : wire::WORKER_READY);
    }
  }
  if (next_follow_ && next_follow_->generation() < below) next_follow_.reset();
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
  after_checkpoint_.reset();
  if (std::exchange(wants_stop_, false))
    wants_checkpoint_ = false;  // who still wants it asks again
  stop_following();
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
  world_.resumed(self_, form.generation(), state_.seq);
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
  if (at_ == At::kIdle) return;  // that was the last step
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
  if (state_.step >= world_.shape().steps) {
    at_ = At::kIdle;
    if (generation_.rank == 0) {
      checkpoint_of_ = state_;
      checkpoint_at_ = now + times_.checkpoint;
      after_checkpoint_ = wire::WORKER_FINISHED;
    } else {
      set_phase(wire::WORKER_FINISHED);
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
  stop_following();
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
  if (follow.generation() < standing_.fenced_below() ||
      follow.generation() <= standing_.generation())
    return;
  if (donor_) {  // busy: it is its next order
    next_follow_ = follow;
    return;
  }
  at_ = At::kIdle;
  held_.clear();
  accumulated_ = 0;
  reduced_.reset();
  standing_.set_has_state(false);
  standing_.clear_last();
  set_phase(wire::WORKER_FOLLOWING);
  donor_ = tuple_of(follow.donor());
  follow_generation_ = follow.generation();
  pulled_ = false;
  standing_.set_following(follow_generation_);
  standing_.set_caught_up(false);
  due_ = now + times_.pull;
  emit();
}

void ModelWorker::stop_following() {
  donor_.reset();
  standing_.clear_following();
  standing_.clear_caught_up();
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
    stop_following();
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
    apply(record, donor->sums.at(state_.seq), now);
    const bool begins = planned_ && planned_->number == record.switch_generation();
    if (begins && planned_->is_member) return enter(*planned_, now);
  }
  if (!standing_.caught_up() && donor_ && state_.seq + 1 >= donor->state.seq) {
    standing_.set_caught_up(true);
    wire::WorkerEvent event;
    event.mutable_caught_up()->set_generation(follow_generation_);
    event.mutable_caught_up()->set_seq(state_.seq);
    emit(std::move(event));
  }
}

}  // namespace rubato::sim
