// RoundLog: what the operators of one story decide on, for tests/data/scheduler: one line for each
// round worth keeping, {"from": "seed 7 round 12", "snapshot": {…}, "plan": {…}}. Worth keeping is
// what no line before it has, and whose plan acts, or leaves a job without what it asks for; of the
// quiet rounds the first few.
#pragma once

#include "operator/control/scheduler_loop.h"

#include <cstdint>
#include <memory>
#include <string>

namespace rubato::sim {

class RoundLog {
 public:
  // Makes the folder, and its file seed-N.jsonl anew.
  RoundLog(const std::string& folder, std::uint64_t seed);
  void operator()(const sched::Snapshot& snapshot, const sched::Plan& plan) const;

 private:
  struct Book;
  std::shared_ptr<Book> book_;  // copies write the same file
};

}  // namespace rubato::sim
