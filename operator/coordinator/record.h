// Record: what the coordinator keeps durably of a job, in TrainingJob.status.membership. All else
// is rebuilt from the agents. Private to this folder. Plain values.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rubato::coordinator {

// One worker slot of one pod.
struct WorkerKey {
  std::string pod_uid;
  std::uint32_t slot = 0;
  auto operator<=>(const WorkerKey&) const = default;
};
std::string to_string(const WorkerKey& key);

struct Member {
  WorkerKey key;
  std::uint64_t incarnation = 0;
  std::string pod;
  std::string node;
  std::string gpu_type;
  bool operator==(const Member&) const = default;
};

struct Record {
  std::uint64_t generation = 0;
  std::uint64_t leader = 0;
  std::string phase;             // name_of(Phase)
  std::vector<Member> members;   // rank = index
  std::vector<Member> previous;  // while a planned change is under way
  std::uint64_t seq = 0;         // writes within the generation
  std::uint64_t step = 0;        // last committed step known when written
  std::string fingerprint;       // of the first generation that stood; empty before
  std::uint64_t stop_steps = 0;  // that the generation's workers have; 0: as they were configured
  std::uint64_t ended_at = 0;    // the step after which its script ended it; 0: it has not
  std::uint64_t rescales = 0;    // of the job's life, the one that led to this generation included
  std::uint64_t recomputed_steps = 0;  // of the job's life
  std::uint64_t failures = 0;          // of workers, of the job's own making; of its life
  // How many of them are crashes that the agents of today's pods have counted (Hello.crashes), by
  // pod uid: what an agent counts beyond is new, whoever leads.
  std::map<std::string, std::uint64_t> crashes;
  bool operator==(const Record&) const = default;
};

// Members as lists, or packed when they are many (operator/api/packed_members.h).
json::Value to_json(const Record& record);
// kInvalid: packed members that cannot be read.
Result<Record> record_from(const json::Value& membership);

}  // namespace rubato::coordinator
