// The log subresource of pods: which lines of which container are asked for, and of which agent.
#include "apiserver/front/router.h"

#include <algorithm>

namespace rubato::apiserver {
namespace {

using json::Value;
using kube::Answer;

constexpr std::int64_t kSinceSecondsMost = 1'000'000'000;  // before anything here was written

// Which lines; below 0, or empty: not said.
struct LinesAsked {
  std::int64_t tail = -1;
  std::int64_t since_seconds = -1;
  std::int64_t bytes = -1;
  std::string since_time;
};

// The number at `name`, if the request has it; one below `least` is a fault.
Answer<std::int64_t> bounded(const Request& request, const char* name, std::int64_t least,
                             std::vector<kube::FieldError>& errors) {
  if (request.param(name).empty()) return std::int64_t{-1};
  TRY(const std::int64_t number, request.integer(name, -1));
  if (number < least)
    errors.push_back(kube::field::invalid(
        name, number,
        least == 0 ? "must be greater than or equal to 0" : "must be greater than 0"));
  return number;
}

Answer<LinesAsked> lines_asked(const Request& request, const std::string& pod) {
  LinesAsked out;
  std::vector<kube::FieldError> errors;
  TRY(out.tail, bounded(request, "tailLines", 0, errors));
  TRY(out.since_seconds, bounded(request, "sinceSeconds", 1, errors));
  TRY(out.bytes, bounded(request, "limitBytes", 1, errors));
  out.since_time = request.param("sinceTime");
  if (!out.since_time.empty()) {
    if (!parse_rfc3339(out.since_time).ok())
      return kube::api_error::bad_request("parsing time " + json::dump(Value(out.since_time)) +
                                          " as \"2006-01-02T15:04:05Z07:00\"");
    if (out.since_seconds >= 0)
      errors.push_back(kube::field::forbidden(
          "[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
  }
  if (errors.empty()) return out;
  return kube::api_error::invalid({"", "v1", "pods", "PodLogOptions", true}, pod, errors);
}

std::string asked_of_agent(const Request& request, const LinesAsked& lines) {
  std::string query;
  const auto add = [&](const char* name, const std::string& value) {
    query += std::string(query.empty() ? "?" : "&") + name + "=" + percent_encode(value);
  };
  for (const char* name : {"follow", "timestamps", "previous"})
    if (request.flag(name)) add(name, "true");
  if (lines.tail >= 0) add("tailLines", std::to_string(lines.tail));
  if (lines.since_seconds >= 0)
    add("sinceSeconds", std::to_string(std::min(lines.since_seconds, kSinceSecondsMost)));
  if (!lines.since_time.empty()) add("sinceTime", lines.since_time);
  if (lines.bytes >= 0) add("limitBytes", std::to_string(lines.bytes));
  return query;
}

}  // namespace

Answer<Reply> Router::log(const Request& request, const Place& place) const {
  TRY(const LinesAsked lines, lines_asked(request, place.name));
  TRY(const Value pod, server_.get(kube::types::kPod, {place.ns, place.name}));
  const Value& containers = pod["spec"]["containers"];
  std::string container = request.param("container");
  std::string names;
  bool known = false;
  for (const Value& c : containers.items()) {
    names += (names.empty() ? "" : " ") + c["name"].string_or("");
    known = known || c["name"].string_view_or("") == container;
  }
  for (const Value& c : pod["spec"]["initContainers"].items())
    known = known || c["name"].string_view_or("") == container;
  if (container.empty() && containers.size() == 1) {
    container = containers[0]["name"].string_or("");
    known = true;
  }
  if (container.empty())
    return kube::api_error::bad_request("a container name must be specified for pod " + place.name +
                                        ", choose one of: [" + names + "]");
  if (!known)
    return kube::api_error::bad_request("container " + container + " is not valid for pod " +
                                        place.name);
  const std::string node_name = pod["spec"]["nodeName"].string_or("");
  Reply reply;
  if (node_name.empty()) {
    reply.response.content_type = "text/plain";
    return reply;
  }
  TRY(const Value node, server_.get(kube::types::kNode, {"", node_name}));
  LogReply log;
  for (const Value& address : node["status"]["addresses"].items())
    if (address["type"].string_view_or("") == "InternalIP" && log.host.empty())
      log.host = address["address"].string_or("");
  const std::int64_t port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].int_or(0);
  if (log.host.empty() || port <= 0)
    return kube::api_error::internal("node " + node_name + " names no endpoint for logs");
  log.port = std::to_string(port);
  log.target = "/containerLogs/" + percent_encode(place.ns) + "/" + percent_encode(place.name) +
               "/" + percent_encode(container);
  log.target += asked_of_agent(request, lines);
  reply.log = std::move(log);
  return reply;
}

}  // namespace rubato::apiserver
