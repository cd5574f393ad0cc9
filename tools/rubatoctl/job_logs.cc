#include "tools/rubatoctl/job_logs.h"

#include "kube/errors.h"
#include "kube/rest_url.h"
#include "operator/api/resources.h"

#include <algorithm>
#include <atomic>
#include <sstream>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kReadPoll = 250ms;
constexpr auto kReopenWait = 500ms;

bool has_started(const Value& pod) {
  const std::string_view phase = pod["status"]["phase"].string_view_or("");
  return phase == "Running" || phase == "Succeeded" || phase == "Failed";
}
bool has_ended(const Value& pod) {
  const std::string_view phase = pod["status"]["phase"].string_view_or("");
  return phase == "Succeeded" || phase == "Failed";
}

std::string worker_container(const Value& pod) {
  const auto& containers = pod["spec"]["containers"].items();
  for (const Value& container : containers)
    if (container["name"].string_view_or("") == "worker") return "worker";
  return containers.empty() ? "" : containers[0]["name"].string_or("");
}

std::string log_path(const Value& pod, bool follow) {
  kube::Query query{{"timestamps", "true"}};
  if (const std::string container = worker_container(pod); !container.empty())
    query.emplace_back("container", container);
  if (follow) query.emplace_back("follow", "true");
  return kube::object_path(kube::types::kPod, kube::key_of(pod), "log") + kube::encode_query(query);
}

// "pod gpt-worker-0 on node n1"
std::string named(const Value& pod) {
  return "pod " + kube::name_of(pod) + " on node " + pod["spec"]["nodeName"].string_or("?");
}

Error no_log(const std::string& ns, const std::string& job) {
  return Error(Code::kNotFound,
               fmt::format("no log of job {}/{} can be read\n  What to do: see whether it has "
                           "pods: `rubatoctl describe tj {}`",
                           ns, job, job));
}

kube::ListOptions pods_of(const std::string& job) {
  return {.label_selector = std::string(api::kLabelJob) + "=" + job};
}

}  // namespace

struct JobLogs::Reader {
  Value pod;
  LogPosition position;
  std::optional<Code> said;  // the reader's alone
  std::atomic<bool> was_read{false};
  std::atomic<bool> done{false};
  Task task;  // last: ends before what it uses
};

PodLine split_time(const std::string& pod, const std::string& text) {
  const auto blank = text.find(' ');
  const auto time = parse_rfc3339(std::string_view(text).substr(0, blank));
  if (blank == std::string::npos || !time.ok()) return {pod, std::nullopt, text};
  return {pod, *time, text.substr(blank + 1)};
}

void LogPosition::reopen() {
  skips_ = last_time_.has_value();
  to_skip_ = read_;
}

bool LogPosition::is_new(const std::optional<WallTime>& time) {
  if (!time) return !skips_;
  if (skips_) {
    if (*time < *last_time_) return false;
    if (*time == *last_time_ && to_skip_ > 0) {
      --to_skip_;
      return false;
    }
    skips_ = false;
  }
  read_ = time == last_time_ ? read_ + 1 : 1;
  last_time_ = time;
  return true;
}

LogSource log_source(Session& session) {
  return {session.client(), session.executor(),
          [&session](const std::string& path) { return session.rest().stream(path); }};
}

JobLogs::JobLogs(LogSource source, std::string ns, std::string job, Say say)
    : source_(std::move(source)),
      ns_(std::move(ns)),
      job_(std::move(job)),
      say_(std::move(say)),
      changed_(source_.executor.make_condition()) {
  looker_ = source_.executor.spawn("job-logs", [this](const std::stop_token& stop) {
    Error end = look(stop);
    std::lock_guard lock(mutex_);
    end_ = std::move(end);
    changed_->notify_all();
  });
}

JobLogs::~JobLogs() {
  looker_ = Task();
  for (auto& [uid, reader] : readers_) reader->task.request_stop();
  {
    std::lock_guard lock(mutex_);
    lines_.clear();
    changed_->notify_all();
  }
  readers_.clear();
}

Result<PodLine> JobLogs::next(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  changed_->wait_until(lock, deadline, [&] { return !lines_.empty() || end_; });
  if (!lines_.empty()) {
    PodLine line = std::move(lines_.front());
    lines_.pop_front();
    changed_->notify_all();
    return line;
  }
  if (end_) return *end_;
  return Error(Code::kTimeout, "no line");
}

void JobLogs::tell(std::optional<Code>& said, const Error& error, bool is_last) const {
  if (said != error.code() && say_) say_(error.what() + (is_last ? "" : "; trying again"));
  said = error.code();
}

// Looks for pods until the job is finished and every reader has come to its end.
Error JobLogs::look(const std::stop_token& stop) {
  std::optional<Code> said;
  while (!stop.stop_requested()) {
    const auto job = source_.client.get(api::kTrainingJob, {ns_, job_});
    bool is_over = !job.ok() && job.error().code() == Code::kNotFound;
    if (job.ok()) {
      const std::string state = (*job)["status"]["state"].string_or("");
      is_over = state == "Complete" || state == "Failed";
    }
    const auto pods = source_.client.list(kube::types::kPod, ns_, pods_of(job_));
    if (pods.ok()) read_new(pods->items);
    if (!pods.ok() || (!job.ok() && !is_over)) {
      const Error& failed = pods.ok() ? job.error() : pods.error();
      if (kube::is_forbidden(failed)) return failed;
      tell(said, failed, false);
    } else {
      said.reset();
    }
    const auto all = [&](auto of) { return std::ranges::all_of(readers_, of); };
    if (is_over && pods.ok() && all([](const auto& entry) { return entry.second->done.load(); })) {
      if (!readers_.empty() && all([](const auto& entry) { return !entry.second->was_read; }))
        return no_log(ns_, job_);
      break;
    }
    source_.executor.sleep_for(kPodsPoll, stop);
  }
  return Error(Code::kCancelled, "all is said");
}

void JobLogs::read_new(const std::vector<Value>& pods) {
  for (const Value& pod : pods) {
    const std::string uid = kube::uid_of(pod);
    if (!has_started(pod) || readers_.contains(uid)) continue;
    auto& reader = readers_[uid] = std::make_unique<Reader>();
    reader->pod = pod;
    reader->task = source_.executor.spawn(
        "pod-log", [this, r = reader.get()](const std::stop_token& stop) { read(*r, stop); });
  }
}

// Reads to the pod's end; a stream that is cut is opened again, and goes on where it was.
void JobLogs::read(Reader& reader, const std::stop_token& stop) {
  const std::string name = kube::name_of(reader.pod);
  const std::string path = log_path(reader.pod, true);
  while (!stop.stop_requested()) {
    auto stream = source_.open(path);
    if (stream.ok()) {
      reader.was_read = true;
      reader.done = false;
    }
    reader.position.reopen();
    while (stream.ok() && !stop.stop_requested()) {
      const auto text = (*stream)->next(source_.executor.now() + kReadPoll);
      if (!text.ok() && text.error().code() == Code::kTimeout) continue;
      if (!text.ok()) break;
      PodLine line = split_time(name, *text);
      if (!reader.position.is_new(line.time)) continue;
      if (!put(std::move(line), stop)) break;
    }
    const auto pod = source_.client.get(kube::types::kPod, kube::key_of(reader.pod));
    const bool is_gone = !pod.ok() && pod.error().code() == Code::kNotFound;
    const bool is_unseen = !pod.ok() && kube::is_forbidden(pod.error());
    const bool is_last =
        is_gone || is_unseen ||
        (pod.ok() && (has_ended(*pod) || kube::uid_of(*pod) != kube::uid_of(reader.pod)));
    if (stream.ok())
      reader.said.reset();
    else if (pod.ok() || is_unseen)  // else it is gone, or nothing answers, as the looker says
      tell(reader.said, stream.error().in(named(reader.pod)), is_last);
    if (is_last) break;
    // A lost node's pod stays as it is; nobody will ever read it. The looker ends when the job
    // does.
    reader.done = !stream.ok();
    source_.executor.sleep_for(kReopenWait, stop);
  }
  reader.done = true;
}

bool JobLogs::put(PodLine line, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (lines_.size() >= kLogQueueLines) {
    if (stop.stop_requested()) return false;
    changed_->wait_until(lock, source_.executor.now() + kReadPoll);
  }
  lines_.push_back(std::move(line));
  changed_->notify_all();
  return true;
}

Result<std::vector<PodLine>> read_job_logs(Session& session, const std::string& ns,
                                           const std::string& job) {
  TRY(const std::vector<Value> pods, session.list(kube::types::kPod, ns, pods_of(job)));
  std::vector<PodLine> lines;
  std::size_t read = 0;
  for (const Value& pod : pods) {
    if (!has_started(pod)) continue;
    const auto body = session.rest().get_raw(log_path(pod, false));
    if (!body.ok()) {
      fmt::print(stderr, "{}: {}\n", named(pod), body.error().what());
      continue;
    }
    ++read;
    std::istringstream in(*body);
    for (std::string text; std::getline(in, text);)
      lines.push_back(split_time(kube::name_of(pod), text));
  }
  if (read == 0) {
    const auto object = session.client().get(api::kTrainingJob, {ns, job});
    if (!object.ok()) return advised(object.error());
    return no_log(ns, job);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const PodLine& a, const PodLine& b) { return a.time < b.time; });
  return lines;
}

}  // namespace rubato::ctl
