// Faults of the network, of the API as an operator sees it, and of operators; and how all is
// mended.
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace rubato::sim {

// ---- Network and API

// The switch between a group of nodes and all others. One time in three the operators and the API
// server are behind it as well, with the others.
void WholeCluster::split(const Fault& fault) {
  std::vector<std::string> names;
  for (const auto& node : nodes_)
    if (witness_.nodes().contains(node->name())) names.push_back(node->name());
  if (names.size() < 2) return;
  std::ranges::rotate(names, names.begin() + static_cast<long>(fault.pick % names.size()));
  const std::size_t size = 1 + fault.more / 3 % (names.size() - 1);
  const std::vector<std::string> group(names.begin(), names.begin() + static_cast<long>(size));
  const std::vector<std::string> rest(names.begin() + static_cast<long>(size), names.end());
  std::vector<std::string> beyond = rest;
  if (fault.more % 3 == 0) {
    beyond.emplace_back(kApiHost);
    for (const auto& replica : replicas_) beyond.push_back(replica->host());
  }
  story_.say("FAULT {} reach neither {} for {:.1f} s", fmt::join(group, ", "),
             fmt::join(beyond, ", "), seconds(fault.spell));
  trouble_everywhere();
  const auto note = [this, names] {
    for (const std::string& name : names) note_parted(name);
  };
  note();
  for (const std::string& a : group)
    for (const std::string& b : beyond) links_.cut_pair(a, b);
  later(fault.spell, [this, group, beyond, note] {
    story_.say("{} reach {} again", fmt::join(group, ", "), fmt::join(beyond, ", "));
    trouble_everywhere();
    note();
    for (const std::string& a : group)
      for (const std::string& b : beyond) links_.heal_pair(a, b);
  });
}

void WholeCluster::double_messages(const Fault& fault) {
  trouble_everywhere();
  story_.say("FAULT messages come twice at times, for {:.1f} s", seconds(fault.spell));
  links_.touch_all();
  doubling_.chance = 0.3;
  later(fault.spell, [this] { doubling_.chance = 0; });
}

void WholeCluster::slow_network(const Fault& fault) {
  trouble_everywhere();
  const Duration delay = 50ms + std::chrono::milliseconds(fault.more);
  story_.say("FAULT messages take up to {:.2f} s for {:.1f} s", seconds(delay),
             seconds(fault.spell));
  links_.touch_all();
  network_.set_link({1ms, delay});
  later(fault.spell, [this] {
    story_.say("messages are fast again");
    trouble_everywhere();
    links_.touch_all();
    network_.set_link({100us, scenario_.link_delay});
  });
}

void WholeCluster::api_fault(const Fault& fault) {
  Replica* replica = replicas_[fault.pick % replicas_.size()].get();
  if (fault.pick % 3 != 0 && leader() != nullptr) replica = leader();
  const std::string host = replica->host();
  const double span = seconds(fault.spell);
  if (fault.kind == FaultKind::kApiAway) {
    story_.say("FAULT {} does not reach the API for {:.1f} s", host, span);
    links_.cut_pair(host, kApiHost);
    return later(fault.spell, [this, host] {
      story_.say("{} reaches the API again", host);
      links_.heal_pair(host, kApiHost);
    });
  }
  static constexpr std::array kKinds = {"trainingjobs", "pods", "trainingjobs", "nodes",
                                        "trainingjobs"};
  if (fault.kind == FaultKind::kApiFlaky) {
    story_.say("FAULT requests of {} fail at times, for {:.1f} s", host, span);
    replica->trouble().flaky = 0.1 + static_cast<double>(fault.more % 30) / 100;
  } else if (fault.kind == FaultKind::kApiExpired) {
    story_.say("FAULT watches of {} get 410, for {:.1f} s", host, span);
    replica->trouble().expired = 0.2;
  } else if (fault.kind == FaultKind::kLateWrites) {
    story_.say("FAULT writes of {} wait in the server at times, for {:.1f} s", host, span);
    replica->trouble().late = 0.4;
  } else {
    replica->trouble().slow_kind = kKinds.at(fault.more % kKinds.size());
    replica->trouble().slow_events = 500ms + std::chrono::milliseconds(5 * fault.more);
    story_.say("FAULT events of {} reach {} {:.1f} s late, for {:.1f} s",
               replica->trouble().slow_kind, host, seconds(replica->trouble().slow_events), span);
  }
  later(fault.spell, [this, replica] {
    story_.say("the API is well again for {}", replica->host());
    replica->trouble() = {};
  });
}

// ---- Operators

void WholeCluster::operator_fault(const Fault& fault) {
  Replica* replica = replicas_[fault.pick % replicas_.size()].get();
  if (fault.pick % 4 != 0 && leader() != nullptr) replica = leader();
  if (!replica->is_alive() || replica->is_frozen()) return;
  links_.touch(replica->host());
  if (fault.kind == FaultKind::kOperatorCrash) {
    story_.say("FAULT {} dies", replica->host());
    return replica->crash();
  }
  if (fault.kind == FaultKind::kOperatorStop) {
    story_.say("FAULT {} is told to end", replica->host());
    return replica->stop();
  }
  if (fault.kind == FaultKind::kClock) {
    const auto jump = std::chrono::milliseconds(fault.more * 10) - 5s;
    story_.say("FAULT the wall clock of {} jumps by {:.1f} s", replica->host(), seconds(jump));
    return replica->process()->skew(Duration(0), jump);
  }
  story_.say("FAULT {} freezes for {:.1f} s", replica->host(), seconds(fault.spell));
  replica->freeze();
  later(fault.spell, [this, replica, process = replica->process()] {
    if (replica->process() != process) return;
    links_.touch(replica->host());
    story_.say("{} thaws", replica->host());
    replica->thaw();
  });
}

// All that is broken is mended: from here on everything must come to a good end.
void WholeCluster::calm() {
  story_.say("all is mended");
  for (auto& node : nodes_) {
    if (!witness_.nodes().contains(node->name())) continue;
    if (node->is_frozen()) node->thaw();
    if (!node->is_up()) node->power_on();
    node->set_idle(false);
    // A restored store may have brought back that it was cordoned, or about to go.
    set_cordoned(node->name(), false);
    take_back(node->name());
    for (auto& [uid, container] : node->containers())
      if (!container->exit_status) container->thaw();
  }
  for (auto& replica : replicas_) {
    if (replica->is_frozen()) replica->thaw();
    replica->trouble() = {};
  }
  for (auto* volume : {&checkpoints_, &data_}) volume->faults() = {};
  crashes_.due.clear();
  armed_.clear();
}

}  // namespace rubato::sim
