// Links: who reaches whom. One place for cuts, so that agents' connections (SimNetwork), links
// between modelled workers, kubelets and API clients see the same partition. Cuts of one host
// nest: it is back when each of them was healed.
#pragma once

#include "common/testing/sim_network.h"

#include <map>
#include <string>
#include <utility>

namespace rubato::sim {

constexpr const char* kApiHost = "api";

class Links {
 public:
  explicit Links(testing::SimNetwork& network) : network_(network) {}

  void cut(const std::string& host) {
    if (hosts_[host]++ == 0) network_.cut(host);
  }
  void heal(const std::string& host) {
    const auto found = hosts_.find(host);
    if (found == hosts_.end() || --found->second > 0) return;
    hosts_.erase(found);
    network_.heal(host);
  }
  void cut_pair(const std::string& a, const std::string& b) {
    if (pairs_[std::minmax(a, b)]++ == 0) network_.cut_pair(a, b);
  }
  void heal_pair(const std::string& a, const std::string& b) {
    const auto found = pairs_.find(std::minmax(a, b));
    if (found == pairs_.end() || --found->second > 0) return;
    pairs_.erase(found);
    network_.heal_pair(a, b);
  }
  bool is_cut(const std::string& host) const { return hosts_.contains(host); }
  bool reaches(const std::string& a, const std::string& b) const {
    if (a == b) return true;
    return !hosts_.contains(a) && !hosts_.contains(b) && !pairs_.contains(std::minmax(a, b));
  }
  testing::SimNetwork& network() { return network_; }

 private:
  testing::SimNetwork& network_;
  std::map<std::string, int> hosts_;
  std::map<std::pair<std::string, std::string>, int> pairs_;
};

}  // namespace rubato::sim
