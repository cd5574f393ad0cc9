#include "kube/rest_url.h"

#include <charconv>

#include <arpa/inet.h>

namespace rubato::kube {
namespace {

bool is_loopback(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "::1" || host == "localhost";
}

std::string escape(std::string_view text, std::string_view also_plain) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' ||
                       also_plain.find(c) != std::string_view::npos;
    if (plain) {
      result += c;
    } else {
      result += '%';
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  return result;
}

void add(Query& query, const char* key, const std::string& value) {
  if (!value.empty()) query.emplace_back(key, value);
}

}  // namespace

bool is_ip_address(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

Result<ServerUrl> parse_server_url(std::string_view text) {
  const auto bad = [&](const char* why) {
    return Error(Code::kInvalid, "server \"" + std::string(text) + "\": " + why);
  };
  ServerUrl url;
  std::string_view rest = text;
  if (rest.substr(0, 8) == "https://") {
    rest.remove_prefix(8);
  } else if (rest.substr(0, 7) == "http://") {
    rest.remove_prefix(7);
    url.tls = false;
    url.port = 80;
  } else {
    return bad("must begin with https:// (or http:// for a loopback address)");
  }
  const auto slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.prefix = std::string(rest.substr(slash));
    while (!url.prefix.empty() && url.prefix.back() == '/') url.prefix.pop_back();
    rest = rest.substr(0, slash);
  }
  if (!rest.empty() && rest.front() == '[') {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return bad("no ']'");
    url.host = std::string(rest.substr(1, close - 1));
    if (url.host.find(':') == std::string::npos || !is_ip_address(url.host))
      return bad("in brackets stands no IPv6 address (zones are not supported)");
    rest.remove_prefix(close + 1);
  } else {
    url.host = std::string(rest.substr(0, rest.find(':')));
    rest.remove_prefix(url.host.size());
  }
  if (!rest.empty()) {
    const auto end = rest.data() + rest.size();
    const auto parsed = std::from_chars(rest.data() + 1, end, url.port);
    if (rest.front() != ':' || parsed.ec != std::errc{} || parsed.ptr != end || url.port == 0)
      return bad("bad port");
  }
  if (url.host.empty()) return bad("no host");
  if (!url.tls && !is_loopback(url.host)) return bad("http:// is only for loopback addresses");
  return url;
}

std::string authority_of(const ServerUrl& url) {
  const bool v6 = url.host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + url.host + "]" : url.host;
  const bool standard = url.port == (url.tls ? 443 : 80);
  return standard ? host : host + ":" + std::to_string(url.port);
}

std::string escape_segment(std::string_view text) { return escape(text, ":@"); }

std::string encode_query(const Query& query) {
  std::string result;
  for (const auto& [key, value] : query) {
    result += result.empty() ? '?' : '&';
    result += escape(key, "") + "=" + escape(value, "");
  }
  return result;
}

std::string collection_path(const ResourceType& type, const std::string& ns) {
  std::string path =
      type.group.empty() ? "/api/" + type.version : "/apis/" + type.group + "/" + type.version;
  if (type.namespaced && !ns.empty()) path += "/namespaces/" + escape_segment(ns);
  return path + "/" + type.plural;
}

std::string object_path(const ResourceType& type, const Key& key, const std::string& subresource) {
  std::string path = collection_path(type, key.ns) + "/" + escape_segment(key.name);
  if (!subresource.empty()) path += "/" + subresource;
  return path;
}

Query list_query(const ListOptions& options) {
  Query query;
  add(query, "labelSelector", options.label_selector);
  add(query, "fieldSelector", options.field_selector);
  if (options.limit > 0) add(query, "limit", std::to_string(options.limit));
  add(query, "continue", options.continue_token);
  // A token carries its version.
  if (options.continue_token.empty()) add(query, "resourceVersion", options.resource_version);
  return query;
}

Query watch_query(const WatchOptions& options, std::chrono::seconds timeout) {
  Query query{{"watch", "1"}};
  add(query, "labelSelector", options.label_selector);
  add(query, "fieldSelector", options.field_selector);
  add(query, "resourceVersion", options.resource_version);
  if (options.allow_bookmarks) add(query, "allowWatchBookmarks", "true");
  add(query, "timeoutSeconds", std::to_string(timeout.count()));
  return query;
}

Query write_query(const WriteOptions& options, PatchType patch, bool is_patch) {
  Query query;
  add(query, "fieldManager", options.field_manager);
  if (options.dry_run) add(query, "dryRun", "All");
  if (is_patch && patch == PatchType::kApply && options.force) add(query, "force", "true");
  add(query, "fieldValidation", options.field_validation);
  return query;
}

const char* content_type(PatchType type) {
  switch (type) {
    case PatchType::kJson:
      return "application/json-patch+json";
    case PatchType::kMerge:
      return "application/merge-patch+json";
    case PatchType::kApply:
      return "application/apply-patch+yaml";
    case PatchType::kStrategicMerge:
      return "application/strategic-merge-patch+json";
  }
  return "application/json";
}

json::Value delete_body(const DeleteOptions& options) {
  json::Value body = json::Value::object({{"apiVersion", "v1"}, {"kind", "DeleteOptions"}});
  if (!options.uid.empty()) body.at("preconditions").set("uid", options.uid);
  if (!options.resource_version.empty())
    body.at("preconditions").set("resourceVersion", options.resource_version);
  if (options.grace_period_seconds >= 0)
    body.set("gracePeriodSeconds", options.grace_period_seconds);
  if (!options.propagation.empty()) body.set("propagationPolicy", options.propagation);
  return body;
}

}  // namespace rubato::kube
