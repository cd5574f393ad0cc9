// What a worker may do next.
#include "tests/property/step_protocol/model_parts.h"

#include <algorithm>

namespace rubato::protocol_model {
namespace {

constexpr Byte kPosted = 0x80;
constexpr Byte kOverflow = 0x40;
constexpr Byte kReducedBit = 0x80;
constexpr Byte kEachOnce = kReducedBit | 0b010101;
constexpr Byte kApply = 1;
constexpr Byte kRedo = 2;
constexpr Mask kAllMicro = (1 << kMicro) - 1;

// Adds one contribution to the counts of a reduction, two bits a micro-batch, saturating at 3.
Byte add_counts(Byte counts, Mask micro) {
  for (int m = 0; m < kMicro; ++m) {
    const int now = (counts >> (2 * m)) & 3;
    if (has(micro, m) && now < 3) counts = static_cast<Byte>(counts + (1 << (2 * m)));
  }
  return counts;
}

}  // namespace

void Model::worker_steps(const State& s, int i, Sink& out) const {
  const auto at = static_cast<std::size_t>(i);
  const std::string who = "worker " + std::to_string(i);
  if (options_.only_dies == -1 || options_.only_dies == i) {
    State next = s;
    next.worker[at] = Worker{};
    next.worker[at].alive = next.worker[at].has_state = 0;
    out.add(who + " dies", next);
  }
  if (s.abort_below[at] > s.worker[at].fenced) take_abort(s, i, out);
  for (int g = 2; g <= kMaxGen; ++g) {
    const FormNote& form = s.form[static_cast<std::size_t>(g)];
    if (has(form.members, i) && !form.planned && g >= s.worker[at].fenced && g > s.worker[at].gen)
      take_form(s, i, g, out);
  }
  round_steps(s, i, out);
  if (i == kNewcomer && options_.join) follow_steps(s, i, out);
  planned_steps(s, i, out);
  // An Abort that was obeyed is answered; the answer may be given again to a new leader.
  const bool asked = s.leader_up && s.target != 0 && has(s.trusted, i) && !s.standing[at].known;
  if (asked && s.worker[at].fenced == s.target) {
    State next = s;
    const Worker& w = next.worker[at];
    next.standing[at] = {1, w.has_state, w.seq, w.gen, w.reduced, w.held};
    out.add(who + " answers with its standing", next);
  }
}

void Model::take_abort(const State& s, int i, Sink& out) const {
  const auto at = static_cast<std::size_t>(i);
  State next = s;
  Worker& w = next.worker[at];
  if (options_.bug == Bug::kNoFence) {
    if (next.leader_up && next.target == next.abort_below[at])
      next.standing[at] = {1, w.has_state, w.seq, w.gen, w.reduced, w.held};
    next.abort_below[at] = 0;
    out.add("worker " + std::to_string(i) + " answers an abort and goes on", next);
    return;
  }
  w.fenced = next.abort_below[at];
  if (options_.bug == Bug::kApplyWithoutDecision && w.reduced && w.stage != Stage::kIdle)
    apply(next, i, kApply, 0, out);
  w.stage = Stage::kIdle;
  w.following = w.formed = w.prepared = 0;
  if (next.leader_up && next.target == w.fenced && has(next.trusted, i))
    next.standing[at] = {1, w.has_state, w.seq, w.gen, w.reduced, w.held};
  out.add("worker " + std::to_string(i) + " aborts below " + std::to_string(w.fenced), next);
}

void Model::take_form(const State& s, int i, int gen, Sink& out) const {
  State next = s;
  Worker& w = next.worker[static_cast<std::size_t>(i)];
  const FormNote& form = next.form[static_cast<std::size_t>(gen)];
  const std::string who = "worker " + std::to_string(i);
  if (w.seq > form.base) return out.broken(who + " is beyond the base of the form it gets");
  if (w.seq + 1 < form.base || !w.has_state)
    return out.broken(who + " is a member and cannot level");
  if (w.seq + 1 == form.base) {
    const Mask held = w.held;
    apply(next, i, next.decided[w.seq], 0, out);
    if (options_.bug == Bug::kSalvageWithoutSeq) w.held = w.stale = held;
  }
  w.gen = w.fenced = as_byte(gen);
  w.share = form.share[static_cast<std::size_t>(i)];
  if ((w.held & ~w.share) != 0 && options_.bug != Bug::kKeepForeignMicroBatches) w.held = 0;
  w.formed = w.prepared = w.following = 0;
  w.stage = w.seq == options_.rounds() ? Stage::kIdle : Stage::kCompute;
  out.add(who + " forms generation " + std::to_string(gen), next);
}

void Model::round_steps(const State& s, int i, Sink& out) const {
  const auto at = static_cast<std::size_t>(i);
  const Worker& w = s.worker[at];
  const std::string who = "worker " + std::to_string(i);
  const Mask members = s.form[w.gen].members;
  const auto posted_by_all = [&](const auto& board) {
    for (int m = 0; m < kRanks; ++m)
      if (has(members, m) && !(board[w.gen][m][w.seq] & kPosted)) return false;
    return true;
  };
  State next = s;
  Worker& n = next.worker[at];
  switch (w.stage) {
    case Stage::kIdle:
      return;
    case Stage::kCompute: {
      const Mask todo = static_cast<Mask>(w.share & ~w.held);
      n.held |= static_cast<Mask>(todo & -todo);
      if ((n.share & ~n.held) != 0) return out.add(who + " computes a micro-batch", next);
      next.contribution[w.gen][i][w.seq] = static_cast<Byte>(kPosted | (n.held & ~n.stale));
      // The buffer of the reduction is about to be overwritten.
      n.reduced = options_.bug == Bug::kKeepReductionBuffer && w.reduced ? kReducedBit : Byte{0};
      n.stage = Stage::kReduce;
      return out.add(who + " contributes", next);
    }
    case Stage::kReduce: {
      if (options_.bug == Bug::kVoteBeforeReduction && !next.vote[w.gen][i][w.seq]) {
        State early = s;
        early.vote[w.gen][i][w.seq] = vote_of(s, i);
        out.add(who + " votes before its reduction is complete", early);
      }
      if (!posted_by_all(s.contribution)) return;
      n.reduced = kReducedBit;
      for (int m = 0; m < kRanks; ++m)
        if (has(members, m))
          n.reduced = add_counts(n.reduced, s.contribution[w.gen][m][w.seq] & kAllMicro);
      next.vote[w.gen][i][w.seq] = vote_of(s, i);
      n.stage = Stage::kVoted;
      return out.add(who + " completes its reduction and votes", next);
    }
    case Stage::kVoted:
      if (posted_by_all(s.vote)) decide(s, i, out);
      return;
  }
}

Byte Model::vote_of(const State& s, int i) const {
  const Worker& w = s.worker[static_cast<std::size_t>(i)];
  const bool overflow = options_.redo && w.seq == 0 && has(w.held, kMicro - 1);
  return static_cast<Byte>(kPosted | (overflow ? kOverflow : 0) | w.prepared);
}

void Model::decide(const State& s, int i, Sink& out) const {
  State next = s;
  const Worker& w = s.worker[static_cast<std::size_t>(i)];
  bool overflow = false;
  int lowest = kMaxGen + 1;
  int highest = 0;
  for (int m = 0; m < kRanks; ++m) {
    if (!has(s.form[w.gen].members, m)) continue;
    const Byte vote = s.vote[w.gen][m][w.seq];
    overflow = overflow || (vote & kOverflow);
    lowest = std::min(lowest, vote & 0x0f);
    highest = std::max(highest, vote & 0x0f);
  }
  const int wanted = options_.bug == Bug::kSwitchWithoutAll ? highest : lowest;
  const Byte outcome = overflow ? kRedo : kApply;
  if (next.decided[w.seq] == 0) next.decided[w.seq] = outcome;
  const Byte switch_to = wanted > w.gen ? as_byte(wanted) : Byte{0};
  apply(next, i, outcome, switch_to, out);
  out.add("worker " + std::to_string(i) + " sees the decision of round " + std::to_string(w.seq) +
              (switch_to ? " and switches" : ""),
          next);
}

void Model::apply(State& s, int i, Byte outcome, Byte switch_to, Sink& out) const {
  Worker& w = s.worker[static_cast<std::size_t>(i)];
  const std::string who = "worker " + std::to_string(i);
  if (s.decided[w.seq] == 0)
    out.broken(who + " applies a round that nobody decided");
  else if (s.decided[w.seq] != outcome)
    out.broken(who + " applies another decision");
  if (w.reduced != kEachOnce)
    out.broken(who + " applies a sum that has not each micro-batch exactly once");
  if (i == kDonor) s.stream[w.seq] = static_cast<Byte>(kPosted | switch_to);
  if (w.seq >= options_.rounds()) return;  // only after a violation
  ++w.seq;
  w.held = w.reduced = w.stale = 0;
  if (switch_to) {
    if (w.formed != switch_to) out.broken(who + " switches to a generation it was not told of");
    w.gen = switch_to;
    w.formed = w.prepared = 0;
  }
  const Mask members = s.form[w.gen].members;
  const bool goes_on = has(members, i) && w.seq < options_.rounds();
  w.share = goes_on ? even_share(members, i) : Mask{0};
  w.stage = goes_on ? Stage::kCompute : Stage::kIdle;
}

// ---- Planned changes
// -------------------------------------------------------------------------------

void Model::follow_steps(const State& s, int i, Sink& out) const {
  const auto at = static_cast<std::size_t>(i);
  const Worker& w = s.worker[at];
  const Worker& donor = s.worker[kDonor];
  if (w.stage != Stage::kIdle || w.seq >= options_.rounds()) return;
  State next = s;
  Worker& n = next.worker[at];
  const bool asked = s.leader_up && !s.target && !s.record_previous && !has(s.record_members, i);
  if (!w.following && asked && donor.alive && has(s.record_members, kDonor) &&
      donor.gen == s.record_gen) {
    n.has_state = n.following = 1;
    n.seq = donor.seq;
    n.held = n.reduced = 0;
    return out.add("the newcomer takes a snapshot", next);
  }
  if (!w.following || !(s.stream[w.seq] & kPosted)) return;
  const Byte switch_to = s.stream[w.seq] & 0x0f;
  if (switch_to && switch_to != w.formed) return;  // it waits for its own Form
  n.reduced = kEachOnce;                           // the donor's reduction
  apply(next, i, s.decided[w.seq], switch_to, out);
  if (switch_to) {
    n.following = 0;
  } else {
    n.stage = Stage::kIdle;
    n.share = 0;
  }
  out.add("the newcomer follows a round", next);
}

void Model::planned_steps(const State& s, int i, Sink& out) const {
  const auto at = static_cast<std::size_t>(i);
  const Worker& w = s.worker[at];
  for (int g = 2; g <= kMaxGen; ++g) {
    const FormNote& form = s.form[static_cast<std::size_t>(g)];
    if (!form.planned || g <= w.gen || g < w.fenced) continue;
    if (!has(form.members | form.previous, i)) continue;
    State next = s;
    if (w.formed < g) {
      next.worker[at].formed = as_byte(g);
      out.add("worker " + std::to_string(i) + " is told of generation " + std::to_string(g), next);
    } else if (w.prepared < g) {
      bool links = true;
      for (int m = 0; m < kRanks; ++m)
        if (has(form.members, m) && s.worker[static_cast<std::size_t>(m)].formed < g &&
            s.worker[static_cast<std::size_t>(m)].gen < g)
          links = false;
      if (!links && has(form.members, i)) continue;
      next.worker[at].prepared = as_byte(g);
      out.add("worker " + std::to_string(i) + " has the links of " + std::to_string(g), next);
    }
  }
}

}  // namespace rubato::protocol_model
