// RecordStore: reads and swaps one job's record in TrainingJob.status.membership. JSON Patch with
// `test` on the job's uid, generation, leader and seq: a request that was given up may still take
// effect, and only seq tells the writes within a generation apart. The first write, when there is
// nothing to test, is tied to the object's resourceVersion. Blocks the calling task for at most a
// request, or kSwapLimit.
#pragma once

#include "common/executor.h"
#include "kube/client.h"
#include "operator/coordinator/record.h"

#include <cstdint>
#include <optional>
#include <stop_token>

namespace rubato::coordinator {

constexpr auto kSwapLimit = 20s;  // of retries, when the server does not answer
constexpr int kOpenTries = 8;     // while others write the status of the same object

// The record of a job that has none: leader `epoch`, nobody in it. `version`: the object's
// resourceVersion; kConflict when it has changed since. Returns the object.
Result<json::Value> write_first_record(kube::Client& client, const kube::Key& job,
                                       const std::string& version, bool has_status,
                                       std::uint64_t epoch);

// A job that has no record and no allocation, as a decision saw it.
struct UnbegunJob {
  kube::Key key;
  std::string uid;
  std::int64_t generation = 0;  // of its spec
  std::string version;          // resourceVersion
  bool has_status = false;
};
// The same while others write its status: read and tried again, up to kOpenTries times. kConflict:
// it is not any more what the decision saw.
Result<json::Value> write_first_record(kube::Client& client, const UnbegunJob& job,
                                       std::uint64_t epoch);

class RecordStore {
 public:
  RecordStore(Executor& executor, kube::Client& client, kube::Key job, std::string uid)
      : executor_(executor), client_(client), job_(std::move(job)), uid_(std::move(uid)) {}

  // The record with `epoch` as its leader, written before it is returned. kConflict: a newer leader
  // owns it, or the object changed under each of kOpenTries; kNotFound: the job is gone.
  Result<Record> open(std::uint64_t epoch);

  // Replaces `from` by `to`. kConflict: somebody else wrote. A write whose answer was lost is
  // looked up, so success is never mistaken for failure.
  Status swap(const Record& from, const Record& to, const std::stop_token& stop);

  // The leader that the last open() found in our place, if its epoch is above ours.
  std::optional<std::uint64_t> newer_leader() const { return newer_leader_; }

 private:
  Result<json::Value> read();
  Result<Record> try_open(std::uint64_t epoch);
  Status write(const Record& from, const Record& to);

  Executor& executor_;
  kube::Client& client_;
  kube::Key job_;
  std::string uid_;
  std::optional<std::uint64_t> newer_leader_;
};

}  // namespace rubato::coordinator
