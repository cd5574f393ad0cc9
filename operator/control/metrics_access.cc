#include "operator/control/metrics_access.h"

#include "common/log.h"

#include <algorithm>

namespace rubato::control {
namespace {

using json::Value;
constexpr std::string_view kScheme = "Bearer ";
constexpr int kAllowed = 200;
constexpr int kNobody = 401;
constexpr int kForbidden = 403;
constexpr int kUnknown = 503;

kube::ResourceType review_type(const char* group, const char* plural, const char* kind) {
  return {.group = group, .version = "v1", .plural = plural, .kind = kind, .namespaced = false};
}

Value review_of(const kube::ResourceType& type, Value spec) {
  return Value::object({{"apiVersion", type.api_version()},
                        {"kind", type.kind},
                        {"metadata", Value::object({})},
                        {"spec", std::move(spec)}});
}

const char* sentence(int status) {
  switch (status) {
    case kNobody:
      return "send a token of this cluster: Authorization: Bearer ...\n";
    case kForbidden:
      return "this account may not get the non-resource URL /metrics; bind it to the chart's "
             "ClusterRole metrics-reader\n";
    default:
      return "whether this may be read cannot be known now; try again\n";
  }
}

}  // namespace

MetricsAccess::MetricsAccess(kube::Client& client, Executor& executor, Metrics& metrics)
    : client_(client), executor_(executor), metrics_(metrics), asked_(executor.make_condition()) {
  task_ = executor_.spawn("metrics-access", [this](const std::stop_token& stop) { run(stop); });
}

MetricsAccess::~MetricsAccess() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  task_.request_stop();
  asked_->notify_all();
  task_.join();
  for (const Question& question : questions_) tell(kUnknown, question.done);
}

void MetricsAccess::decide(const net::HttpRequest& request, net::HttpOptions::Decide done) {
  const std::string_view header = request.authorization;
  const bool has_token = header.starts_with(kScheme) && header.size() > kScheme.size() &&
                         header.size() <= kScheme.size() + kTokenBytesMost;
  if (!has_token) return tell(kNobody, done);
  std::string token(header.substr(kScheme.size()));
  if (const auto status = known({net::sha256_hex(token), request.path})) return tell(*status, done);
  {
    const std::lock_guard lock(mutex_);
    if (!ending_ && questions_.size() < kQuestionsMost) {
      questions_.push_back({std::move(token), request.path, std::move(done)});
      asked_->notify_all();
      return;
    }
  }
  tell(kUnknown, done);
}

void MetricsAccess::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Question question;
    {
      std::unique_lock lock(mutex_);
      asked_->wait_until(lock, executor_.now() + 10s,
                         [&] { return !questions_.empty() || ending_; });
      if (ending_) return;
      if (questions_.empty()) continue;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    const Asked asked(net::sha256_hex(question.token), question.path);
    auto status = known(asked);  // by one that stood before it in the queue
    if (!status) {
      status = review(question);
      if (*status != kUnknown) remember(asked, *status);
    }
    tell(*status, question.done);
  }
}

int MetricsAccess::review(const Question& question) {
  static const auto kTokens = review_type("authentication.k8s.io", "tokenreviews", "TokenReview");
  static const auto kAccess =
      review_type("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview");
  const auto who =
      client_.create(kTokens, "", review_of(kTokens, Value::object({{"token", question.token}})));
  if (!who.ok()) {
    LOG_WARNING("metrics", "cannot review a token: {}", who.error().to_string());
    return kUnknown;
  }
  const Value& seen = (*who)["status"];
  if (!seen["authenticated"].bool_or(false)) return kNobody;
  const Value& user = seen["user"];
  Value spec = Value::object(
      {{"user", user["username"]},
       {"nonResourceAttributes", Value::object({{"path", question.path}, {"verb", "get"}})}});
  for (const char* member : {"groups", "uid", "extra"})
    if (user.has(member)) spec.set(member, user[member]);
  const auto may = client_.create(kAccess, "", review_of(kAccess, std::move(spec)));
  if (!may.ok()) {
    LOG_WARNING("metrics", "cannot review access: {}", may.error().to_string());
    return kUnknown;
  }
  return (*may)["status"]["allowed"].bool_or(false) ? kAllowed : kForbidden;
}

std::optional<int> MetricsAccess::known(const Asked& asked) {
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(asked);
  if (found == answers_.end() || executor_.now() >= found->second.until) return std::nullopt;
  return found->second.status;
}

void MetricsAccess::remember(const Asked& asked, int status) {
  const std::lock_guard lock(mutex_);
  const MonoTime now = executor_.now();
  std::erase_if(answers_, [&](const auto& entry) { return now >= entry.second.until; });
  if (answers_.size() >= kAnswersMost)
    answers_.erase(std::ranges::min_element(answers_, {},
                                            [](const auto& entry) { return entry.second.until; }));
  answers_[asked] = {status,
                     now + (status == kAllowed ? Duration(kAllowedFor) : Duration(kDeniedFor))};
}

void MetricsAccess::tell(int status, const net::HttpOptions::Decide& done) {
  if (status == kAllowed) return done(std::nullopt);
  metrics_
      .counter("rubato_metrics_refused_total",
               "Requests for /metrics that were refused, by status.",
               {{"code", std::to_string(status)}})
      .add();
  done(net::HttpResponse{.status = status, .body = sentence(status)});
}

}  // namespace rubato::control
