// MetricsAccess: who may read /metrics where it is served with authorisation. A request carries a
// bearer token; the API server says whose it is (TokenReview) and whether that account may `get`
// the non-resource URL (SubjectAccessReview). The same rights as with other operators' secured
// metrics.
//
// Answers are remembered by the token's digest, a yes longer than a no. Bounds: kAnswersMost
// remembered, kQuestionsMost waiting (more are told to come again), one review at a time, so that
// who floods the port with tokens costs the API server no more than that. Thread-safe.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/net/http_listener.h"
#include "kube/client.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::control {

constexpr std::size_t kAnswersMost = 256;
constexpr std::size_t kQuestionsMost = 64;
constexpr std::size_t kTokenBytesMost = 8192;
constexpr auto kAllowedFor = 60s;
constexpr auto kDeniedFor = 10s;

class MetricsAccess {
 public:
  MetricsAccess(kube::Client& client, Executor& executor, Metrics& metrics);
  ~MetricsAccess();  // refuses who waits

  // For HttpOptions::admit: 401 without a good token, 403 without the right, 503 while that cannot
  // be known. Does not wait.
  void decide(const net::HttpRequest& request, net::HttpOptions::Decide done);

 private:
  struct Question {
    std::string token;
    std::string path;
    net::HttpOptions::Decide done;
  };
  struct Answer {
    int status = 0;  // 200: it may
    MonoTime until{};
  };
  using Asked = std::pair<std::string, std::string>;  // digest of the token, path

  void run(const std::stop_token& stop);
  int review(const Question& question);
  std::optional<int> known(const Asked& asked);
  void remember(const Asked& asked, int status);
  void tell(int status, const net::HttpOptions::Decide& done);

  kube::Client& client_;
  Executor& executor_;
  Metrics& metrics_;
  std::unique_ptr<Condition> asked_;
  std::mutex mutex_;
  bool ending_ = false;
  std::deque<Question> questions_;
  std::map<Asked, Answer> answers_;
  Task task_;
};

}  // namespace rubato::control
