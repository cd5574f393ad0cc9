// CopyPool: memory for copies of a state, used again and again: taking fresh memory for each costs
// more than the copy. Thread-safe.
#pragma once

#include "common/result.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kCopiesMost = 3;  // one for a checkpoint, one for a follower, one spare

template <class State>
class CopyPool {
 public:
  // One that nobody holds; `make` gives a Result<State> where there is none, or its error.
  // kUnavailable: all are in use.
  template <class Make>
  Result<std::shared_ptr<State>> take(const Make& make) {
    const std::lock_guard lock(mutex_);
    for (const auto& state : states_)
      if (state.use_count() == 1) return state;
    if (states_.size() >= kCopiesMost) return Error(Code::kUnavailable, "all snapshots are in use");
    TRY(State state, make());
    states_.push_back(std::make_shared<State>(std::move(state)));
    return states_.back();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<State>> states_;
};

}  // namespace rubato::worker
