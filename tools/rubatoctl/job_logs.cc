#include "tools/rubatoctl/job_logs.h"

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

kube::ListOptions pods_of(const std::string& job) {
  return {.label_selector = std::string(api::kLabelJob) + "=" + job};
}

}  // namespace

struct JobLogs::Reader {
  Value pod;
  LogPosition position;
  std::atomic<bool> done{false};
  Task task;  // last: ends before what it uses
};

PodLine split_time(const std::string& pod, const std::string& text) {
  const auto blank = text.find(' ');
  if (blank == std::string::npos || blank < 20 || text[blank - 1] != 'Z') return {pod, "", text};
  return {pod, text.substr(0, blank), text.substr(blank + 1)};
}

void LogPosition::reopen() {
  skips_ = !last_time_.empty();
  to_skip_ = read_;
}

bool LogPosition::is_new(const std::string& time) {
  if (time.empty()) return !skips_;
  if (skips_) {
    if (time < last_time_) return false;
    if (time == last_time_ && to_skip_ > 0) {
      --to_skip_;
      return false;
    }
    skips_ = false;
  }
  read_ = time == last_time_ ? read_ + 1 : 1;
  last_time_ = time;
  return true;
}

JobLogs::JobLogs(Session& session, std::string ns, std::string job)
    : session_(session),
      ns_(std::move(ns)),
      job_(std::move(job)),
      changed_(session.executor().make_condition()) {
  looker_ =
      session_.executor().spawn("job-logs", [this](const std::stop_token& stop) { look(stop); });
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
  changed_->wait_until(lock, deadline, [&] { return !lines_.empty() || ended_; });
  if (!lines_.empty()) {
    PodLine line = std::move(lines_.front());
    lines_.pop_front();
    changed_->notify_all();
    return line;
  }
  if (ended_) return Error(Code::kCancelled, "all is said");
  return Error(Code::kTimeout, "no line");
}

// Looks for pods until the job is finished and every reader has come to its end.
void JobLogs::look(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const auto job = session_.client().get(api::kTrainingJob, {ns_, job_});
    bool is_over = !job.ok() && job.error().code() == Code::kNotFound;
    if (job.ok()) {
      const std::string state = (*job)["status"]["state"].string_or("");
      is_over = state == "Complete" || state == "Failed";
    }
    const auto pods = session_.client().list(kube::types::kPod, ns_, pods_of(job_));
    if (pods.ok()) {
      for (const Value& pod : pods->items) {
        auto& reader = readers_[kube::uid_of(pod)];
        if (reader || !has_started(pod)) continue;
        reader = std::make_unique<Reader>();
        reader->pod = pod;
        reader->task = session_.executor().spawn(
            "pod-log", [this, r = reader.get()](const std::stop_token& s) { read(*r, s); });
      }
      std::erase_if(readers_, [](const auto& entry) { return entry.second == nullptr; });
    }
    const bool all_read = std::all_of(readers_.begin(), readers_.end(),
                                      [](const auto& entry) { return entry.second->done.load(); });
    if (is_over && pods.ok() && all_read) break;
    session_.executor().sleep_for(kPodsPoll, stop);
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_->notify_all();
}

// Reads to the pod's end; a stream that is cut is opened again, and goes on where it was.
void JobLogs::read(Reader& reader, const std::stop_token& stop) {
  const std::string name = kube::name_of(reader.pod);
  const std::string path = log_path(reader.pod, true);
  while (!stop.stop_requested()) {
    auto stream = session_.rest().stream(path);
    reader.position.reopen();
    while (stream.ok() && !stop.stop_requested()) {
      const auto text = (*stream)->next(session_.executor().now() + kReadPoll);
      if (!text.ok() && text.error().code() == Code::kTimeout) continue;
      if (!text.ok()) break;
      PodLine line = split_time(name, *text);
      if (!reader.position.is_new(line.time)) continue;
      if (!put(std::move(line), stop)) break;
    }
    const auto pod = session_.client().get(kube::types::kPod, kube::key_of(reader.pod));
    const bool is_gone = !pod.ok() && pod.error().code() == Code::kNotFound;
    if (is_gone ||
        (pod.ok() && (has_ended(*pod) || kube::uid_of(*pod) != kube::uid_of(reader.pod))))
      break;
    // A lost node's pod stays as it is; nobody will ever read it. The looker ends when the job
    // does.
    reader.done = !stream.ok();
    session_.executor().sleep_for(kReopenWait, stop);
  }
  reader.done = true;
}

bool JobLogs::put(PodLine line, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (lines_.size() >= kLogQueueLines) {
    if (stop.stop_requested()) return false;
    changed_->wait_until(lock, session_.executor().now() + kReadPoll);
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
      fmt::print(stderr, "pod {} on node {}: {}\n", kube::name_of(pod),
                 pod["spec"]["nodeName"].string_or("?"), body.error().what());
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
    return Error(Code::kNotFound,
                 fmt::format("no log of job {}/{} can be read\n  What to do: see whether it has "
                             "pods: `rubatoctl describe tj {}`",
                             ns, job, job));
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const PodLine& a, const PodLine& b) { return a.time < b.time; });
  return lines;
}

}  // namespace rubato::ctl
