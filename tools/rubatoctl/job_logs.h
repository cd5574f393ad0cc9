// JobLogs: the lines of all worker pods of a job, as they come, from any cluster: read through the
// API server's log endpoint. One task looks for pods, one per pod reads; the queue between them and
// next() is bounded, a full one makes the readers wait.
#pragma once

#include "common/executor.h"
#include "kube/line_stream.h"
#include "tools/rubatoctl/session.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::ctl {

constexpr std::size_t kLogQueueLines = 4096;
constexpr auto kPodsPoll = 500ms;

struct PodLine {
  std::string pod;
  std::optional<WallTime> time;  // as the node wrote it; without: the line had none
  std::string line;
};
// "2026-11-21T08:00:00.123456Z text"; of a node in another time zone "…+08:00 text".
PodLine split_time(const std::string& pod, const std::string& text);

// Which lines of a log that is read again from its beginning were not read before. Several lines
// may carry the same time.
class LogPosition {
 public:
  // The stream begins: once before each reading.
  void reopen();
  // Called for each line, in order. From the first new one on all are.
  bool is_new(const std::optional<WallTime>& time);

 private:
  std::optional<WallTime> last_time_;
  std::size_t read_ = 0;     // lines of last_time_
  std::size_t to_skip_ = 0;  // of these, in this reading
  bool skips_ = false;
};

// What pods and their logs are read through. `open` is for paths of logs.
struct LogSource {
  kube::Client& client;
  Executor& executor;
  std::function<Result<std::unique_ptr<kube::LineStream>>(const std::string& path)> open;
};
LogSource log_source(Session& session);

class JobLogs {
 public:
  // What cannot be read is told to `say`, once for each kind of error: from any task.
  using Say = std::function<void(const std::string& text)>;
  JobLogs(LogSource source, std::string ns, std::string job, Say say = nullptr);
  ~JobLogs();
  // kTimeout: none until `deadline`. kCancelled: the job is finished or gone, and all is said.
  // kDenied: this user may not see the job or its pods. kNotFound: the end, and of all its pods no
  // log could be read.
  Result<PodLine> next(MonoTime deadline);

 private:
  struct Reader;
  Error look(const std::stop_token& stop);
  void read_new(const std::vector<json::Value>& pods);
  void read(Reader& reader, const std::stop_token& stop);
  bool put(PodLine line, const std::stop_token& stop);
  // `said`: of the same pod, or of all, since it could be read.
  void tell(std::optional<Code>& said, const Error& error, bool is_last) const;

  LogSource source_;
  std::string ns_;
  std::string job_;
  Say say_;
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::deque<PodLine> lines_;
  std::optional<Error> end_;
  std::map<std::string, std::unique_ptr<Reader>> readers_;  // by pod uid; the looker's alone
  Task looker_;
};

// What all pods have said so far, in order of time. A pod whose node does not answer is skipped,
// and named on standard error. kNotFound: there is no such job, or nothing to read of it.
Result<std::vector<PodLine>> read_job_logs(Session& session, const std::string& ns,
                                           const std::string& job);

}  // namespace rubato::ctl
