#include "operator/coordinator/record_store.h"

#include "common/planted.h"
#include "kube/errors.h"
#include "operator/api/resources.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {

json::Value op(const char* kind, const char* path, json::Value value) {
  return json::Value::object({{"op", kind}, {"path", path}, {"value", std::move(value)}});
}

Record first_record(std::uint64_t epoch) {
  Record first;
  first.leader = epoch;
  first.phase = "Waiting";
  return first;
}

}  // namespace

Result<json::Value> write_first_record(kube::Client& client, const kube::Key& job,
                                       const std::string& version, bool has_status,
                                       std::uint64_t epoch) {
  json::Value patch = json::Value::array({op("test", "/metadata/resourceVersion", version)});
  if (!has_status) patch.push_back(op("add", "/status", json::Value::object()));
  patch.push_back(op("add", "/status/membership", to_json(first_record(epoch))));
  auto written = client.patch(api::kTrainingJob, job, kube::PatchType::kJson, patch,
                              {.subresource = "status"});
  if (!written.ok()) return written.error().in("first membership of " + to_string(job));
  return written;
}

Result<json::Value> write_first_record(kube::Client& client, const UnbegunJob& job,
                                       std::uint64_t epoch) {
  UnbegunJob seen = job;
  for (int tries = 1;; ++tries) {
    auto written = write_first_record(client, seen.key, seen.version, seen.has_status, epoch);
    if (written.ok() || written.error().code() != Code::kConflict || tries == kOpenTries)
      return written;
    TRY(const json::Value live, client.get(api::kTrainingJob, job.key));
    const json::Value& meta = live["metadata"];
    const json::Value& status = live["status"];
    const bool is_as_seen = kube::uid_of(live) == job.uid && meta["deletionTimestamp"].is_null() &&
                            meta["generation"].int_or(0) == job.generation &&
                            status["membership"].is_null() && status["allocation"].is_null();
    if (!is_as_seen) return written;
    seen.version = kube::resource_version_of(live);
    seen.has_status = status.is_object();
  }
}

Result<json::Value> RecordStore::read() {
  TRY(json::Value job, client_.get(api::kTrainingJob, job_));
  if (kube::uid_of(job) != uid_)
    return Error(Code::kNotFound, "job " + to_string(job_) + " is another one of the same name");
  return job;
}

Result<Record> RecordStore::open(std::uint64_t epoch) {
  // A young job's status is being written by the job controller too.
  for (int tries = 1;; ++tries) {
    auto opened = try_open(epoch);
    const bool raced = !opened.ok() && opened.error().code() == Code::kConflict && !newer_leader_;
    if (!raced || tries == kOpenTries) return opened;
  }
}

Result<Record> RecordStore::try_open(std::uint64_t epoch) {
  newer_leader_.reset();
  TRY(const json::Value job, read());
  const json::Value& membership = job["status"]["membership"];
  if (!membership.is_null()) {
    TRY(const Record record, record_from(membership));
    if (record.leader > epoch) newer_leader_ = record.leader;
    if (newer_leader_)
      return Error(Code::kConflict, "leader " + std::to_string(record.leader) + " is newer");
    Record next = record;
    next.leader = epoch;
    if (planted(Bug::kKeepOldLeader)) return record;
    if (next.leader != record.leader) TRY_OK(write(record, next));
    return next;
  }
  TRY_OK(write_first_record(client_, job_, kube::resource_version_of(job),
                            job["status"].is_object(), epoch));
  return first_record(epoch);
}

Status RecordStore::write(const Record& from, const Record& to) {
  json::Value patch =
      json::Value::array({op("test", "/metadata/uid", uid_),
                          op("test", "/status/membership/generation", from.generation),
                          op("test", "/status/membership/leader", from.leader),
                          op("test", "/status/membership/seq", from.seq),
                          op("replace", "/status/membership", to_json(to))});
  if (planted(Bug::kBlindMembership)) patch = json::Value::array({patch[4]});
  const auto written = client_.patch(api::kTrainingJob, job_, kube::PatchType::kJson, patch,
                                     {.subresource = "status"});
  if (!written.ok()) return written.error();
  return ok();
}

Status RecordStore::swap(const Record& from, const Record& to, const std::stop_token& stop) {
  const MonoTime deadline = executor_.now() + kSwapLimit;
  Duration wait = 10ms;
  for (;;) {
    Status written = write(from, to);
    if (written.ok()) return written;
    const Code code = written.error().code();
    if (code == Code::kNotFound || kube::is_forbidden(written.error()) || code == Code::kInvalid)
      return written;
    // Did an earlier try of ours get through? Is there anything of another's?
    const auto job = read();
    if (!job.ok() && job.error().code() == Code::kNotFound) return job.error();
    if (job.ok()) {
      TRY(const Record now, record_from((*job)["status"]["membership"]));
      if (now == to) return ok();
      if (now.generation != from.generation || now.leader != from.leader || now.seq != from.seq)
        return Error(Code::kConflict, "membership was written by another");
    }
    if (executor_.now() >= deadline || !executor_.sleep_for(wait, stop)) return written;
    wait = std::min<Duration>(wait * 2, 1s);
  }
}

}  // namespace rubato::coordinator
