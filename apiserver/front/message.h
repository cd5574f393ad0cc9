// Requests and replies of the API without their sockets, so that routing is plain functions.
#pragma once

#include "apiserver/memory/memory_server.h"
#include "common/json.h"
#include "common/result.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rubato::apiserver {

struct Request {
  std::string method;
  std::string path;  // decoded, without the query
  std::vector<std::string> segments;
  std::vector<std::pair<std::string, std::string>> query;
  std::string accept;
  std::string content_type;
  std::string authorization;
  std::string body;

  // The first value, or "".
  std::string param(std::string_view name) const;
  // It is there, and neither "false" nor "0".
  bool flag(std::string_view name) const;
  // `otherwise` when it is not there; 400 when it is no number.
  kube::Answer<std::int64_t> integer(std::string_view name, std::int64_t otherwise) const;
  std::string raw_query;
};

// Splits and percent-decodes a request target. kInvalid for a bad escape.
Status parse_target(std::string_view target, Request& request);
std::string percent_encode(std::string_view text);

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct WatchReply {
  std::unique_ptr<kube::Watcher> watcher;
  kube::InfoPtr info;
  bool as_table = false;
  bool metadata_only = false;
  std::string include_object;
  std::chrono::seconds length{0};
};

// Logs of a container, fetched from the agent of its node.
struct LogReply {
  std::string host;
  std::string port;
  std::string target;  // path and query on the agent
};

struct Reply {
  Response response;  // when neither of the others
  std::optional<WatchReply> watch;
  std::optional<LogReply> log;
};

Response json_response(int status, const json::Value& body);
Response error_response(const kube::ApiError& error);

}  // namespace rubato::apiserver
