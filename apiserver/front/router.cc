// Everything but the resource verbs: resource_verbs.cc.
#include "apiserver/front/router.h"

#include "apiserver/front/body.h"
#include "apiserver/front/discovery.h"
#include "apiserver/front/openapi.h"
#include "common/net/certificates.h"

#include <algorithm>

namespace rubato::apiserver {
namespace {

using json::Value;

constexpr const char* kUser = "rubato:admin";

Reply plain(int status, const std::string& text) {
  Reply out;
  out.response.status = status;
  out.response.content_type = "text/plain; charset=utf-8";
  out.response.body = text;
  return out;
}

Reply object_reply(const Value& body) {
  Reply out;
  out.response = json_response(200, body);
  return out;
}

Reply failure(const kube::ApiError& error) {
  Reply out;
  out.response = error_response(error);
  return out;
}

kube::ApiError unauthorized() { return {401, "Unauthorized", "Unauthorized", {}}; }

bool wants_aggregated(const Request& request) {
  return request.accept.find("as=APIGroupDiscoveryList") != std::string::npos &&
         request.accept.find("v=v2;") != std::string::npos;
}

Reply or_not_found(const Value& body) {
  return body.is_null() ? failure(kube::api_error::no_such_resource()) : object_reply(body);
}

Value version_info() {
  return Value::object({{"major", "1"},
                        {"minor", "36"},
                        {"gitVersion", "v1.36.0+rubato"},
                        {"gitCommit", ""},
                        {"gitTreeState", "clean"},
                        {"buildDate", "1970-01-01T00:00:00Z"},
                        {"goVersion", ""},
                        {"compiler", "g++"},
                        {"platform", "linux/amd64"}});
}

}  // namespace

Router::Router(kube::MemoryServer& server, std::string token)
    : server_(server), token_(std::move(token)) {
  CHECK(!token_.empty());
}

bool Router::authorized(const Request& request) const {
  static constexpr std::string_view kScheme = "bearer ";  // in either case
  const std::string_view header = request.authorization;
  const auto is_same = [](char wanted, char found) {
    return wanted == found || (wanted >= 'a' && found == wanted - 'a' + 'A');
  };
  return header.size() > kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), header.begin(), is_same) &&
         net::equal_secret(header.substr(kScheme.size()), token_);
}

std::optional<Reply> Router::open_endpoint(const Request& request) const {
  if (request.segments.empty()) return std::nullopt;
  const std::string& first = request.segments.front();
  if (first == "livez" || first == "readyz" || first == "healthz") return plain(200, "ok");
  return std::nullopt;
}

std::optional<Reply> Router::meta_endpoint(const Request& request) const {
  const std::vector<std::string>& at = request.segments;
  if (request.method != "GET" || at.empty()) return std::nullopt;
  const auto all = [&] { return server_.resources(); };
  if (at[0] == "version" && at.size() == 1) return object_reply(version_info());
  if (at[0] == "api" || at[0] == "apis") {
    const bool core = at[0] == "api";
    if (at.size() == 1 && wants_aggregated(request)) {
      Reply out = object_reply(aggregated(all(), core));
      out.response.content_type = kAggregatedType;
      return out;
    }
    if (at.size() == 1 && core)
      return object_reply(
          Value::object({{"kind", "APIVersions"}, {"versions", Value::array({"v1"})}}));
    if (at.size() == 1) return object_reply(group_list(all()));
    if (core && at.size() == 2) return or_not_found(resource_list(all(), "", at[1]));
    if (!core && at.size() == 2) return or_not_found(group(all(), at[1]));
    if (!core && at.size() == 3) return or_not_found(resource_list(all(), at[1], at[2]));
    return std::nullopt;
  }
  if (at[0] != "openapi" || at.size() < 2 || at[1] != "v3") return std::nullopt;
  if (at.size() == 2)
    return object_reply(openapi_root(all(), std::to_string(server_.resource_version())));
  if (at.size() == 4 && at[2] == "api") return or_not_found(openapi_document(all(), "", at[3]));
  if (at.size() == 5 && at[2] == "apis") return or_not_found(openapi_document(all(), at[3], at[4]));
  return std::nullopt;
}

// The one user may do everything, so reviews are answered without reading them.
std::optional<Reply> Router::review(const Request& request) const {
  const std::vector<std::string>& at = request.segments;
  if (at.size() != 4 || at[0] != "apis" || at[2] != "v1" || request.method != "POST")
    return std::nullopt;
  const std::string api_version = at[1] + "/v1";
  Value out = Value::object({{"apiVersion", api_version}, {"metadata", Value::object()}});
  const Value any = Value::array({"*"});
  if (at[1] == "authorization.k8s.io" && at[3] == "selfsubjectaccessreviews") {
    out.set("kind", "SelfSubjectAccessReview").set("spec", Value::object());
    out.set("status", Value::object({{"allowed", true}}));
  } else if (at[1] == "authorization.k8s.io" && at[3] == "selfsubjectrulesreviews") {
    out.set("kind", "SelfSubjectRulesReview").set("spec", Value::object());
    out.set("status",
            Value::object(
                {{"resourceRules", Value::array({Value::object(
                                       {{"verbs", any}, {"apiGroups", any}, {"resources", any}})})},
                 {"nonResourceRules",
                  Value::array({Value::object({{"verbs", any}, {"nonResourceURLs", any}})})},
                 {"incomplete", false}}));
  } else if (at[1] == "authentication.k8s.io" && at[3] == "selfsubjectreviews") {
    out.set("kind", "SelfSubjectReview");
    out.set("status",
            Value::object({{"userInfo",
                            Value::object({{"username", kUser},
                                           {"groups", Value::array({"system:masters",
                                                                    "system:authenticated"})}})}}));
  } else {
    return std::nullopt;
  }
  Reply reply;
  reply.response = json_response(201, out);
  return reply;
}

kube::Answer<Router::Place> Router::place_of(const Request& request) const {
  const std::vector<std::string>& at = request.segments;
  const bool core = !at.empty() && at[0] == "api";
  const std::size_t prefix = core ? 2 : 3;
  if (at.size() <= prefix || (!core && at[0] != "apis")) return kube::api_error::no_such_resource();
  const std::string group = core ? "" : at[1];
  const std::string version = core ? at[1] : at[2];
  std::vector<std::string> rest(at.begin() + static_cast<std::ptrdiff_t>(prefix), at.end());
  Place place;
  std::string plural;
  const bool in_namespace =
      rest[0] == "namespaces" && rest.size() >= 3 && rest[2] != "status" && rest[2] != "finalize";
  const std::size_t from = in_namespace ? 2 : 0;
  if (in_namespace) place.ns = rest[1];
  plural = rest[from];
  if (rest.size() > from + 1) place.name = rest[from + 1];
  if (rest.size() > from + 2) place.subresource = rest[from + 2];
  if (rest.size() > from + 3) return kube::api_error::no_such_resource();
  place.info = server_.resource({group, version, plural, "", true});
  if (place.info == nullptr) return kube::api_error::no_such_resource();
  if (in_namespace != place.info->type.namespaced && (in_namespace || !place.name.empty()))
    return kube::api_error::no_such_resource();
  return place;
}

Reply Router::handle(const Request& request) {
  if (auto open = open_endpoint(request)) return std::move(*open);
  if (!authorized(request)) return failure(unauthorized());
  if (auto meta = meta_endpoint(request)) return std::move(*meta);
  if (auto reviewed = review(request)) return std::move(*reviewed);
  auto reply = resource(request);
  if (!reply.ok()) return failure(reply.error());
  return std::move(reply).value();
}

}  // namespace rubato::apiserver
