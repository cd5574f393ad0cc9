// JobLogs: the lines of all worker pods of a job, as they come, from any cluster: read through the
// API server's log endpoint. One task looks for pods, one per pod reads; the queue between them and
// next() is bounded, a full one makes the readers wait.
#pragma once

#include "common/executor.h"
#include "tools/rubatoctl/session.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace rubato::ctl {

constexpr std::size_t kLogQueueLines = 4096;
constexpr auto kPodsPoll = 500ms;

struct PodLine {
  std::string pod;
  std::string time;  // RFC 3339, as the node wrote it
  std::string line;
};
// "2026-11-21T08:00:00.123456Z text"
PodLine split_time(const std::string& pod, const std::string& text);

// Which lines of a log that is read again from its beginning were not read before. Several lines
// may carry the same time.
class LogPosition {
 public:
  // The stream begins: once before each reading.
  void reopen();
  // Called for each line, in order. From the first new one on all are.
  bool is_new(const std::string& time);

 private:
  std::string last_time_;
  std::size_t read_ = 0;     // lines of last_time_
  std::size_t to_skip_ = 0;  // of these, in this reading
  bool skips_ = false;
};

class JobLogs {
 public:
  JobLogs(Session& session, std::string ns, std::string job);
  ~JobLogs();
  // kTimeout: none until `deadline`. kCancelled: the job is finished or gone, and all is said.
  Result<PodLine> next(MonoTime deadline);

 private:
  struct Reader;
  void look(const std::stop_token& stop);
  void read(Reader& reader, const std::stop_token& stop);
  bool put(PodLine line, const std::stop_token& stop);

  Session& session_;
  std::string ns_;
  std::string job_;
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::deque<PodLine> lines_;
  bool ended_ = false;
  std::map<std::string, std::unique_ptr<Reader>> readers_;  // by pod uid; the looker's alone
  Task looker_;
};

// What all pods have said so far, in order of time. A pod whose node does not answer is skipped,
// and named on standard error. kNotFound: there is no such job, or nothing to read of it.
Result<std::vector<PodLine>> read_job_logs(Session& session, const std::string& ns,
                                           const std::string& job);

}  // namespace rubato::ctl
