// Router: from a request to a reply, over a MemoryServer. Authentication, discovery, OpenAPI,
// health, reviews, and the resource verbs with content negotiation. No sockets; never waits.
// Thread-safe as far as MemoryServer is.
#pragma once

#include "apiserver/front/message.h"
#include "apiserver/memory/memory_server.h"

#include <string>

namespace rubato::apiserver {

class Router {
 public:
  // `token`: the one bearer token that is accepted; its user is "rubato:admin".
  Router(kube::MemoryServer& server, std::string token);

  Reply handle(const Request& request);

 private:
  struct Place {  // where a request points
    kube::InfoPtr info;
    std::string ns;
    std::string name;
    std::string subresource;
    bool review = false;  // group versions that only take reviews
  };

  bool authorized(const Request& request) const;
  std::optional<Reply> open_endpoint(const Request& request) const;  // health: without a token
  std::optional<Reply> meta_endpoint(const Request& request) const;
  std::optional<Reply> review(const Request& request) const;
  kube::Answer<Place> place_of(const Request& request) const;

  kube::Answer<Reply> resource(const Request& request);
  kube::Answer<Reply> read(const Request& request, const Place& place);
  kube::Answer<Reply> list(const Request& request, const Place& place);
  kube::Answer<Reply> watch(const Request& request, const Place& place);
  kube::Answer<Reply> log(const Request& request, const Place& place) const;
  kube::Answer<Reply> create(const Request& request, const Place& place);
  kube::Answer<Reply> replace(const Request& request, const Place& place);
  kube::Answer<Reply> patch(const Request& request, const Place& place);
  kube::Answer<Reply> remove(const Request& request, const Place& place);
  kube::Answer<Reply> remove_collection(const Request& request, const Place& place);
  Reply one(const Request& request, const kube::ResourceInfo& info, int status,
            const json::Value& object, bool scale) const;
  Reply written(const Request& request, const Place& place, const kube::Written& written,
                int status) const;

  kube::MemoryServer& server_;
  const std::string token_;
};

}  // namespace rubato::apiserver
