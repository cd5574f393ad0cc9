#include "tests/property/step_protocol/explorer.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <string_view>
#include <unordered_map>

namespace rubato::protocol_model {
namespace {

// Two independent 64-bit mixes of the bytes: states are told apart by 128 bits.
struct Digest {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  bool operator==(const Digest&) const = default;
};
struct DigestHash {
  std::size_t operator()(const Digest& d) const { return d.a; }
};

Digest digest(const State& state) {
  static_assert(std::has_unique_object_representations_v<State>);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
  Digest d{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};
  for (std::size_t i = 0; i < sizeof(State); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<std::size_t>(8, sizeof(State) - i));
    d.a = (d.a ^ word) * 0xff51afd7ed558ccd;
    d.a ^= d.a >> 32;
    d.b = (d.b + word) * 0xc4ceb9fe1a85ec53;
    d.b ^= d.b >> 29;
  }
  return d;
}

class Walk {
 public:
  Walk(const Model& model, std::size_t limit) : model_(model), limit_(limit) {}

  Exploration run() {
    add(model_.initial(), kRoot, "start");
    std::vector<Step> steps;
    std::vector<std::string> violations;
    // States are kept while they wait; what stays of the others is where they came from.
    for (std::size_t at = 0; at < parent_.size(); ++at) {
      const State state = queue_[at - done_];
      trim(at);
      if (parent_.size() > limit_) return fail("more states than the limit", at);
      steps.clear();
      violations.clear();
      model_.successors(state, steps, violations);
      if (!violations.empty()) return fail(violations.front(), at);
      complete_.push_back(model_.complete(state));
      must_.push_back(model_.must_be_able_to_complete(state));
      for (const Step& step : steps) {
        const std::uint32_t to = add(step.next, static_cast<std::uint32_t>(at), step.name);
        edges_.emplace_back(to, static_cast<std::uint32_t>(at));
      }
    }
    return check_progress();
  }

 private:
  static constexpr std::uint32_t kRoot = ~0u;

  std::uint32_t add(const State& state, std::uint32_t from, const std::string& name) {
    const auto [it, is_new] =
        seen_.try_emplace(digest(state), static_cast<std::uint32_t>(parent_.size()));
    if (is_new) {
      queue_.push_back(state);
      parent_.push_back(from);
      label_.push_back(intern(name));
    }
    return it->second;
  }
  std::uint16_t intern(const std::string& name) {
    return names_.try_emplace(name, static_cast<std::uint16_t>(names_.size())).first->second;
  }
  void trim(std::size_t at) {
    if (at - done_ < 1u << 16) return;
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(at - done_));
    done_ = at;
  }
  Exploration summary() const {
    Exploration out;
    out.states = parent_.size();
    out.transitions = edges_.size();
    out.complete = static_cast<std::size_t>(std::count(complete_.begin(), complete_.end(), true));
    return out;
  }
  Exploration fail(const std::string& what, std::size_t at) const {
    std::unordered_map<std::uint16_t, std::string_view> text;
    for (const auto& [name, id] : names_) text[id] = name;
    std::vector<std::string_view> lines;
    for (auto i = static_cast<std::uint32_t>(at); i != kRoot; i = parent_[i])
      lines.push_back(text[label_[i]]);
    Exploration out = summary();
    out.violation = what;
    for (const auto& line : std::views::reverse(lines)) out.story.append(line).append("\n");
    return out;
  }
  // From every state that leaves room for it, the job can still be completed.
  Exploration check_progress() {
    std::sort(edges_.begin(), edges_.end());
    std::vector<bool> reaches(parent_.size(), false);
    std::vector<std::uint32_t> stack;
    for (std::uint32_t i = 0; i < parent_.size(); ++i) {
      if (!complete_[i]) continue;
      reaches[i] = true;
      stack.push_back(i);
    }
    while (!stack.empty()) {
      const std::uint32_t to = stack.back();
      stack.pop_back();
      auto edge = std::lower_bound(edges_.begin(), edges_.end(), std::pair{to, 0u});
      for (; edge != edges_.end() && edge->first == to; ++edge) {
        if (reaches[edge->second]) continue;
        reaches[edge->second] = true;
        stack.push_back(edge->second);
      }
    }
    for (std::size_t i = 0; i < parent_.size(); ++i)
      if (must_[i] && !reaches[i]) return fail("the job can never be completed from here", i);
    return summary();
  }

  const Model& model_;
  std::size_t limit_;
  std::unordered_map<Digest, std::uint32_t, DigestHash> seen_;
  std::vector<State> queue_;
  std::size_t done_ = 0;
  std::vector<std::uint32_t> parent_;
  std::vector<std::uint16_t> label_;
  std::unordered_map<std::string, std::uint16_t> names_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;  // (to, from)
  std::vector<bool> complete_;
  std::vector<bool> must_;
};

}  // namespace

Exploration explore(const Model& model, std::size_t limit) { return Walk(model, limit).run(); }

}  // namespace rubato::protocol_model
