// RestClient: kube::Client against a real API server, over HTTPS (http:// only to loopback). Unary
// requests by cpprestsdk, watches by Boost.Asio; see rest_transport.h. Thread-safe.
//
// Does for its callers: bearer tokens read again, a 401 answered by one retry with a fresh
// credential, Retry-After honoured for 429 (any verb) and 5xx (reads) within the request's timeout,
// a read repeated once when its connection broke. It does not throttle: the API server's priority
// and fairness does. Everything else is an Error from errors.h.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/rng.h"
#include "kube/client.h"
#include "kube/kubeconfig.h"
#include "kube/line_stream.h"

#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace rubato::kube {

constexpr int kRequestTriesMax = 10;

struct RestOptions {
  RequestLimits limits;
  // About how long each watch lasts (two thirds to four thirds of it); then the next goes on from
  // where it ended, which costs the server one request. It bounds how long a connection that
  // something on the way swallows in silence can pass for a quiet one.
  std::chrono::seconds watch_length{30};
  // A watch that has not ended so long after the time it asked for is dead: the only sign of it
  // there is when nothing changes.
  Duration watch_overdue = 5s;
  Duration watch_line_limit = 60s;  // for one event, once its first byte has come
  // Not to begin with "curl", "Wget" or "Mozilla/5.0": the API server indents answers to those.
  std::string user_agent = "rubato (linux/amd64)";
};

class UnaryTransport;
struct RestTarget;
struct HttpRequest;
struct HttpResponse;

// To be destroyed before main returns: cpprestsdk's threads, on which its connections rest, end
// with the program's static objects.
class RestClient : public Client {
 public:
  // kInvalid when the configuration cannot work; does not connect.
  static Result<std::unique_ptr<RestClient>> make(const RestConfig& config, Executor& executor,
                                                  Metrics& metrics,
                                                  const RestOptions& options = {});
  ~RestClient() override;

  Result<json::Value> get(const ResourceType& type, const Key& key,
                          const std::string& subresource) override;
  Result<ObjectList> list(const ResourceType& type, const std::string& ns,
                          const ListOptions& options) override;
  Result<std::unique_ptr<Watch>> watch(const ResourceType& type, const std::string& ns,
                                       const WatchOptions& options) override;
  Result<json::Value> create(const ResourceType& type, const std::string& ns,
                             const json::Value& object, const WriteOptions& options) override;
  Result<json::Value> update(const ResourceType& type, const json::Value& object,
                             const WriteOptions& options) override;
  Result<json::Value> patch(const ResourceType& type, const Key& key, PatchType kind,
                            const json::Value& body, const WriteOptions& options) override;
  Status remove(const ResourceType& type, const Key& key, const DeleteOptions& options) override;

  // Any path of the server ("/version", "/openapi/v3"); the body of a 2xx answer.
  Result<std::string> get_raw(const std::string& path,
                              const std::string& accept = "application/json");
  // What its clock showed when it answered, in whole seconds. kNotFound: it does not say.
  Result<WallTime> server_time();
  // The same, line by line as it comes: logs that are followed, watches of tables.
  Result<std::unique_ptr<LineStream>> stream(const std::string& path,
                                             const std::string& accept = "application/json");

 private:
  RestClient(RestTarget target, Executor& executor, Metrics& metrics, const RestOptions& options);
  Result<std::string> send(HttpRequest request);
  Result<HttpResponse> attempt(const HttpRequest& request, MonoTime deadline);
  Result<json::Value> send_json(HttpRequest request);
  Error explain_patch_failure(const ResourceType& type, const Key& key, const json::Value& body,
                              Error error);
  void note_warning(const std::string& warning);

  std::unique_ptr<RestTarget> target_;
  Executor& executor_;
  Metrics& metrics_;
  RestOptions options_;
  std::string host_;  // label of the metrics
  std::unique_ptr<UnaryTransport> unary_;
  std::mutex mutex_;
  Rng rng_;
  std::set<std::string> warnings_;  // said once each
};

// A client for what default_config() finds.
Result<std::unique_ptr<RestClient>> connect(const KubeconfigOptions& where, Executor& executor,
                                            Metrics& metrics, const RestOptions& options = {});

}  // namespace rubato::kube
