// Links: who reaches whom. One place for cuts, so that agents' connections (SimNetwork), links
// between workers, kubelets and API clients see the same partition. Cuts of one host
// nest: it is back when each of them was healed. It also remembers when a host's links were last
// touched, by a cut or by whatever else delays what is said (touch).
#pragma once

#include "common/testing/sim_network.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace rubato::sim {

constexpr const char* kApiHost = "api";

class Links {
 public:
  Links(testing::SimExecutor& executor, testing::SimNetwork& network)
      : executor_(executor), network_(network) {}

  void touch(const std::string& host) { touched_[host] = executor_.now(); }
  void touch_all() { all_touched_ = executor_.now(); }
  bool is_calm(const std::string& host, Duration since) const {
    const auto found = touched_.find(host);
    const MonoTime last = found == touched_.end() ? MonoTime{} : found->second;
    return executor_.now() - std::max(last, all_touched_) > since;
  }
  void cut(const std::string& host) {
    touch(host);
    if (hosts_[host]++ == 0) network_.cut(host);
  }
  void heal(const std::string& host) {
    touch(host);
    const auto found = hosts_.find(host);
    if (found == hosts_.end() || --found->second > 0) return;
    hosts_.erase(found);
    network_.heal(host);
  }
  void cut_pair(const std::string& a, const std::string& b) {
    touch(a);
    touch(b);
    if (pairs_[std::minmax(a, b)]++ == 0) network_.cut_pair(a, b);
  }
  void heal_pair(const std::string& a, const std::string& b) {
    touch(a);
    touch(b);
    const auto found = pairs_.find(std::minmax(a, b));
    if (found == pairs_.end() || --found->second > 0) return;
    pairs_.erase(found);
    network_.heal_pair(a, b);
  }
  bool are_pairs_whole() const { return pairs_.empty(); }
  bool reaches(const std::string& a, const std::string& b) const {
    if (a == b) return true;
    return !hosts_.contains(a) && !hosts_.contains(b) && !pairs_.contains(std::minmax(a, b));
  }
  testing::SimNetwork& network() { return network_; }

 private:
  testing::SimExecutor& executor_;
  testing::SimNetwork& network_;
  std::map<std::string, MonoTime> touched_;
  MonoTime all_touched_{};
  std::map<std::string, int> hosts_;
  std::map<std::pair<std::string, std::string>, int> pairs_;
};

}  // namespace rubato::sim
