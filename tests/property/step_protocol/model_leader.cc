// What the coordinator may do next.
#include "tests/property/step_protocol/model_parts.h"

#include <algorithm>
#include <numeric>

namespace rubato::protocol_model {

void Model::leader_steps(const State& s, Sink& out) const {
  if (!s.leader_up) {
    State next = s;
    next.leader_up = 1;
    return out.add("a coordinator comes", next);
  }
  if (s.leader_crashes < options_.leader_crashes) {
    State next = s;
    next.leader_up = next.target = next.trusted = next.swapped = next.fallback = 0;
    next.standing = {};
    ++next.leader_crashes;
    out.add("the coordinator dies", next);
  }
  recovery_steps(s, out);
  planned_change_steps(s, out);
}

// It begins to recover with any of those it may trust: the others are dead, or thought to be.
void Model::abort_steps(const State& s, Sink& out) const {
  const auto alive = [&](int i) { return s.worker[static_cast<std::size_t>(i)].alive != 0; };
  const auto state = [&](int i) { return s.worker[static_cast<std::size_t>(i)].has_state != 0; };
  Mask living = 0;
  Mask with_state = 0;
  for (int i = 0; i < kRanks; ++i) {
    if (alive(i)) living |= bit(i);
    if (alive(i) && state(i)) with_state |= bit(i);
  }
  Mask candidates = (s.record_members | s.record_previous) & living;
  const bool fallback = (candidates & with_state) == 0;
  if (fallback) candidates = with_state;
  const bool pending = s.target == s.record_gen + 1;
  for (Mask t = 1; t <= 0b111 && s.record_gen < options_.generations; ++t) {
    if ((t & ~candidates) != 0 || (t & with_state) == 0) continue;
    const bool hopeless = (s.trusted & with_state) == 0;
    if (pending && !hopeless && ((t & ~s.trusted) != 0 || t == s.trusted)) continue;
    State next = s;
    next.target = as_byte(s.record_gen + 1);
    next.trusted = t;
    next.swapped = 0;
    next.fallback = fallback;
    for (int i = 0; i < kRanks; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!pending || !has(t, i)) next.standing[at] = {};
      if (has(t, i)) next.abort_below[at] = std::max(next.abort_below[at], next.target);
    }
    out.add("the coordinator aborts for " + std::to_string(next.target) + " with members " +
                std::to_string(t),
            next);
  }
}

void Model::recovery_steps(const State& s, Sink& out) const {
  abort_steps(s, out);
  if (s.target != 0 && !s.swapped) {
    State next = s;
    next.record_gen = s.target;
    next.record_members = s.trusted;
    next.record_previous = 0;
    next.swapped = 1;
    out.add("the record names generation " + std::to_string(s.target), next);
  }
  if (s.target != 0 && s.swapped == 1) form_recovery(s, out);
}

// The micro-batches of each member: what it holds already, and its part of the rest.
std::vector<std::vector<wire::MicroRange>> Model::shares_of(const State& s,
                                                            const std::vector<int>& members,
                                                            int base) const {
  std::vector<std::vector<wire::MicroRange>> held(members.size());
  std::vector<std::size_t> by_age(members.size());
  std::iota(by_age.begin(), by_age.end(), std::size_t{0});
  // Held by two: the younger generation's is right, the other drops all it holds.
  std::sort(by_age.begin(), by_age.end(), [&](std::size_t a, std::size_t b) {
    return s.standing[static_cast<std::size_t>(members[a])].gen >
           s.standing[static_cast<std::size_t>(members[b])].gen;
  });
  Mask taken = 0;
  for (const std::size_t r : by_age) {
    const Standing& standing = s.standing[static_cast<std::size_t>(members[r])];
    const bool counts = standing.seq == base || options_.bug == Bug::kSalvageWithoutSeq;
    if (!counts || (standing.held & taken) != 0) continue;
    taken |= standing.held;
    for (std::uint32_t m = 0; m < kMicro; ++m)
      if (has(standing.held, static_cast<int>(m))) held[r].push_back({m, m + 1});
  }
  return wire::salvage_shares(held, kMicro);
}

void Model::form_recovery(const State& s, Sink& out) const {
  std::vector<int> members;
  int base = 0;
  for (int i = 0; i < kRanks; ++i) {
    if (!has(s.trusted, i)) continue;
    const Standing& standing = s.standing[static_cast<std::size_t>(i)];
    if (!standing.known) return;
    members.push_back(i);
    if (standing.has_state) base = std::max<int>(base, standing.seq);
  }
  for (const int i : members) {
    const Standing& standing = s.standing[static_cast<std::size_t>(i)];
    const bool levels = standing.has_state &&
                        (standing.seq == base || (standing.seq + 1 == base && standing.reduced));
    if (levels) continue;
    // Only one that never was a full member may be left behind: it follows again.
    if (standing.gen != 0 && !s.fallback)
      out.broken("worker " + std::to_string(i) + " was a member and cannot level");
    return;  // the next recovery goes without it
  }
  const auto shares = shares_of(s, members, base);
  State next = s;
  FormNote form;
  form.members = s.trusted;
  form.base = as_byte(base);
  for (std::size_t r = 0; r < members.size(); ++r)
    form.share[static_cast<std::size_t>(members[r])] = mask_of(shares[r]);
  next.form[s.target] = form;
  next.target = next.trusted = next.swapped = next.fallback = 0;
  next.standing = {};
  out.add("the coordinator forms generation " + std::to_string(s.target), next);
}

void Model::planned_change_steps(const State& s, Sink& out) const {
  const bool quiet = s.target == 0 && s.swapped == 0 && s.record_previous == 0;
  const Worker& newcomer = s.worker[kNewcomer];
  const bool caught_up = newcomer.following && newcomer.seq + 1 >= s.worker[kDonor].seq;
  const bool join = options_.join && caught_up && !has(s.record_members, kNewcomer);
  const bool leave = options_.leave && s.record_members == 0b111;
  if (quiet && (join || leave) && s.record_gen < options_.generations) {
    State next = s;
    ++next.record_gen;
    next.record_previous = s.record_members;
    next.record_members = s.record_members ^ bit(kNewcomer);
    next.swapped = 2;
    out.add("the record names a planned generation", next);
  }
  if (s.swapped == 2 && s.target == 0) {
    State next = s;
    next.form[s.record_gen] = {s.record_members, s.record_previous, 1, 0, {}};
    next.swapped = 0;
    out.add("the planned generation is told", next);
  }
  if (s.record_previous != 0 && s.target == 0 && s.swapped == 0) {
    for (int i = 0; i < kRanks; ++i)
      if (has(s.record_members, i) && s.worker[static_cast<std::size_t>(i)].gen != s.record_gen)
        return;
    State next = s;
    next.record_previous = 0;
    out.add("the planned change is complete", next);
  }
}

}  // namespace rubato::protocol_model
