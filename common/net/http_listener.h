// A small HTTP/1.1 server for /metrics, /healthz, /readyz and the like: plain text over TCP or TLS
// 1.3, GET and HEAD only, for scrapers and probes. Not for the API of anything.
//
// One I/O thread of its own calls the handlers: they must be quick and must not wait. Bounds: 256
// connections, 32 of them from one address (more are closed at once, and with all places taken the
// oldest of the address that has most), 16 KiB of request, 10 s per handshake, per request, per
// answer and of idleness. A shared body is sent to all of them from one copy.
#pragma once

#include "common/executor.h"
#include "common/net/certificates.h"
#include "common/net/channel.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace rubato::net {

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::shared_ptr<const std::string> shared_body =
      nullptr;  // instead of `body`: sent without a copy
  std::string content_type = "text/plain; charset=utf-8";
};

struct HttpRequest {
  std::string path;           // without the query string
  std::string authorization;  // the header, as it came; "" without
};

struct HttpOptions {
  // Set: TLS. Asked at the start, and again when a connection comes kCertificateAge after; a pair
  // that cannot be read or used then leaves the one before in place. I/O thread.
  std::function<Result<KeyPair>()> certificate = {};
  // Set: asked before each handler. `done` is to be called once, from any thread, in the end also
  // after the listener is gone: with nothing when the request may be answered, or with the refusal.
  using Decide = std::function<void(std::optional<HttpResponse> refusal)>;
  std::function<void(const HttpRequest&, Decide done)> admit = {};
};
constexpr auto kCertificateAge = 60s;

class HttpListener {
 public:
  // By path, exactly, without the query string.
  using Handlers = std::map<std::string, std::function<HttpResponse()>>;

  // Listens on an IP address; port 0 asks for a free one. kUnavailable when it is taken.
  static Result<std::unique_ptr<HttpListener>> start(Executor& executor, const Endpoint& at,
                                                     Handlers handlers, HttpOptions options = {});
  ~HttpListener();  // closes all connections and joins the thread
  Endpoint local() const;

 private:
  struct Impl;
  explicit HttpListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::net
