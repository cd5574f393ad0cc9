// Positions as types of their own, so that a node's number is never taken for a job's. They mean
// something inside one Problem only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rubato::sched {

template <class Of>
struct Index {
  std::uint32_t value = 0;
  auto operator<=>(const Index&) const = default;
  Index& operator++() {
    ++value;
    return *this;
  }
};

using NodeIndex = Index<struct OfNodes>;  // in the order of their ids
using JobIndex = Index<struct OfJobs>;    // as in ClusterState::jobs
using TypeIndex = Index<struct OfTypes>;  // GPU types, in the order of their names
using QueueIndex = Index<struct OfQueues>;
using GroupIndex = Index<struct OfGroups>;
using DomainIndex = Index<struct OfDomains>;  // of one topology level

// A vector that one kind of position leads into.
template <class Key, class T>
class Table {
 public:
  Table() = default;
  explicit Table(std::size_t size, const T& value = {}) : all_(size, value) {}

  T& operator[](Key key) { return all_[key.value]; }
  const T& operator[](Key key) const { return all_[key.value]; }
  Key push_back(T value) {
    all_.push_back(std::move(value));
    return Key{static_cast<std::uint32_t>(all_.size() - 1)};
  }
  void reserve(std::size_t size) { all_.reserve(size); }
  Key end_key() const { return Key{static_cast<std::uint32_t>(all_.size())}; }
  std::size_t size() const { return all_.size(); }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  bool operator==(const Table&) const = default;

 private:
  std::vector<T> all_;
};

}  // namespace rubato::sched
