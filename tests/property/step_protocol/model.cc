#include "tests/property/step_protocol/model.h"

#include "tests/property/step_protocol/model_parts.h"

#include <algorithm>

namespace rubato::protocol_model {
namespace {

// Does worker i work in generation g, or could it yet?
bool may_read(const State& s, int i, int g) {
  const Worker& w = s.worker[static_cast<std::size_t>(i)];
  const FormNote& form = s.form[static_cast<std::size_t>(g)];
  const bool works_in = w.gen == g && w.stage != Stage::kIdle;
  const bool may_enter =
      w.gen < g && w.fenced <= g && (g > s.record_gen || has(form.members | form.previous, i));
  return w.alive && (works_in || may_enter);
}

}  // namespace

State Model::initial() const {
  State s{};
  s.record_members = options_.join ? 0b011 : 0b111;
  s.form[1].members = s.record_members;
  for (int i = 0; i < kRanks; ++i) {
    Worker& w = s.worker[static_cast<std::size_t>(i)];
    w.has_state = has(s.record_members, i);
    if (!w.has_state) continue;
    w.gen = 1;
    w.stage = Stage::kCompute;
    w.share = even_share(s.record_members, i);
  }
  return s;
}

void Model::successors(const State& state, std::vector<Step>& steps,
                       std::vector<std::string>& violations) const {
  Sink out{*this, steps, violations};
  for (int i = 0; i < kRanks; ++i)
    if (state.worker[static_cast<std::size_t>(i)].alive) worker_steps(state, i, out);
  leader_steps(state, out);
}

bool Model::complete(const State& s) const {
  return std::any_of(s.worker.begin(), s.worker.end(), [&](const Worker& w) {
    return w.alive && w.has_state && w.seq == options_.rounds();
  });
}

bool Model::must_be_able_to_complete(const State& s) const {
  const bool state = std::any_of(s.worker.begin(), s.worker.end(),
                                 [](const Worker& w) { return w.alive && w.has_state; });
  return state && s.record_gen < options_.generations;
}

// Notes that nobody can read any more are wiped, so that equal futures are equal states.
void Model::forget_the_unreadable(State& s) const {
  for (int i = 0; i < kRanks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (!s.worker[at].alive || s.abort_below[at] <= s.worker[at].fenced) s.abort_below[at] = 0;
  }
  int lowest_seq = kMaxRounds;
  for (const Worker& w : s.worker)
    if (w.alive) lowest_seq = std::min<int>(lowest_seq, w.has_state ? w.seq : 0);
  for (int q = 0; q < std::min(lowest_seq, kMaxRounds); ++q) s.stream[q] = 0;
  for (int g = 1; g <= kMaxGen; ++g) forget_generation(s, g);
}

void Model::forget_generation(State& s, int g) const {
  bool used = false;
  int seq = kMaxRounds;
  for (int i = 0; i < kRanks; ++i) {
    if (!may_read(s, i, g)) continue;
    used = true;
    seq = std::min<int>(seq, s.worker[static_cast<std::size_t>(i)].seq);
  }
  if (!used && g <= s.record_gen && !(s.swapped && g == s.record_gen))
    s.form[static_cast<std::size_t>(g)] = {};
  for (int i = 0; i < kRanks; ++i)
    for (int q = 0; q < std::min(seq, kMaxRounds); ++q)
      s.contribution[g][i][q] = s.vote[g][i][q] = 0;
}

}  // namespace rubato::protocol_model
