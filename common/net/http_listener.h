// A small HTTP/1.1 server for /metrics, /healthz, /readyz and the like: plain text over plain TCP,
// GET and HEAD only, for scrapers and probes. Not for the API of anything.
//
// One I/O thread of its own calls the handlers: they must be quick and must not wait. Bounds: 64
// connections (more are closed at once), 16 KiB of request, 10 s per request and of idleness.
#pragma once

#include "common/executor.h"
#include "common/net/channel.h"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace rubato::net {

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "text/plain; charset=utf-8";
};

class HttpListener {
 public:
  // By path, exactly, without the query string.
  using Handlers = std::map<std::string, std::function<HttpResponse()>>;

  // Listens on an IP address; port 0 asks for a free one. kUnavailable when it is taken.
  static Result<std::unique_ptr<HttpListener>> start(Executor& executor, const Endpoint& at,
                                                     Handlers handlers);
  ~HttpListener();  // closes all connections and joins the thread
  Endpoint local() const;

 private:
  struct Impl;
  explicit HttpListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::net
