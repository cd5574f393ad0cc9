// The two ways bytes reach an API server. Private to RestClient.
//   unary: one request, one answer, by cpprestsdk (its connection pool, its four threads);
//   watch: one connection per watch by Boost.Asio, driven by the task that reads it. Nothing is
//   read ahead of what that task takes, so a slow reader slows the server down and memory stays
//   bounded (cpprestsdk has no such back-pressure: docs/adr/kube-client.md).
#pragma once

#include "common/executor.h"
#include "kube/client.h"
#include "kube/credentials.h"
#include "kube/line_stream.h"
#include "kube/rest_url.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rubato::kube {

constexpr int kCppRestThreads = 4;
constexpr std::size_t kResponseBytesMax = 1u << 30;  // a list of every pod of a large cluster
constexpr std::size_t kErrorBodyMax = 1u << 20;
constexpr std::size_t kWatchReadBytes = 256u << 10;
// etcd bounds an object near 1.5 MiB; in JSON each byte of it may take six (\u003c).
constexpr std::size_t kWatchLineMax = 16u << 20;
constexpr auto kWatchSilenceMax = 150s;  // bookmarks come about each minute
constexpr auto kWatchOpenLimit = 8s;  // until the head of the answer; the server sends it at once
constexpr auto kStreamSilenceMax = 24h;  // a quiet container may say nothing for long
constexpr auto kStreamLengthMax = 24h * 365;
constexpr auto kConnectLimit =
    5s;  // TCP and TLS of a watch: a server that accepts and says nothing
// Of reading one object. Lists may take RequestLimits::timeout; who waits for one object is mostly
// a step of a recovery, and a connection that swallows requests should not hold it up for long.
constexpr auto kObjectReadLimit = 5s;
constexpr auto kTcpUserTimeout = 30s;
// A quiet connection is probed, so that a server that lost its power is missed within 30 s.
constexpr auto kTcpProbeAfter = 15s;
constexpr auto kTcpProbeEach = 5s;
constexpr int kTcpProbes = 3;

// Everything about the server that does not change between requests.
struct RestTarget {
  ServerUrl url;
  std::string server_name;  // to find in its certificate
  bool verify = true;
  std::shared_ptr<Credentials> credentials;
  std::vector<std::pair<std::string, std::string>> headers;  // on every request
};

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // path and query, without the server's prefix
  std::string body;
  std::string content_type;
  std::string authorization;
  std::string accept = "application/json";
  bool is_small = false;  // one object: kObjectReadLimit is enough
};
struct HttpResponse {
  int code = 0;
  std::string body;
  std::string retry_after;
  std::string flow_schema;  // which API priority level judged us; for logs of 429
  std::string warning;
  std::string date;  // the server's clock, as RFC 9110 writes it
};

// How long a stream may be quiet, last as a whole, and take for one line.
struct StreamBounds {
  Duration silence;
  Duration length;
  Duration line;
};

class UnaryTransport {
 public:
  virtual ~UnaryTransport() = default;
  // kUnavailable: no answer, the request may not even have been sent. kTimeout: at the deadline.
  virtual Result<HttpResponse> send(const HttpRequest& request, MonoTime deadline) = 0;
};
std::unique_ptr<UnaryTransport> make_cpprest_transport(RestTarget target, Executor& executor);

// Connects, asks, and reads the head of the answer; an answer other than 200 is its Error.
Result<std::unique_ptr<Watch>> open_asio_watch(const RestTarget& target, const HttpRequest& request,
                                               const Clock& clock, MonoTime deadline,
                                               const StreamBounds& bounds);
Result<std::unique_ptr<LineStream>> open_asio_lines(const RestTarget& target,
                                                    const HttpRequest& request, const Clock& clock,
                                                    MonoTime deadline);

// One line of a watch: {"type":T,"object":{…}}. An ERROR event is its Error.
Result<WatchEvent> parse_watch_line(std::string_view line);
// The items of a list as bytes each.
Result<ObjectList> split_list(const std::string& body);

}  // namespace rubato::kube
