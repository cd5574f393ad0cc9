// Paths and queries of the Kubernetes API. Pure text.
#pragma once

#include "kube/client.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rubato::kube {

// https://host[:port][/prefix]
struct ServerUrl {
  bool tls = true;
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 443;
  std::string prefix;  // "" or "/…", no slash at the end
};
// kInvalid for other schemes, and for http:// to anything but a loopback address: a token must not
// travel in clear.
Result<ServerUrl> parse_server_url(std::string_view text);
// "host" or "host:port", brackets for IPv6: the Host header.
std::string authority_of(const ServerUrl& url);
bool is_ip_address(const std::string& host);

using Query = std::vector<std::pair<std::string, std::string>>;
std::string encode_query(const Query& query);  // "?a=b&c=d", or ""
std::string escape_segment(std::string_view text);

// /apis/GROUP/VERSION/[namespaces/NS/]PLURAL, and with /NAME[/SUB].
std::string collection_path(const ResourceType& type, const std::string& ns);
std::string object_path(const ResourceType& type, const Key& key,
                        const std::string& subresource = "");

Query list_query(const ListOptions& options);
Query watch_query(const WatchOptions& options, std::chrono::seconds timeout);
Query write_query(const WriteOptions& options, PatchType patch, bool is_patch);
const char* content_type(PatchType type);
json::Value delete_body(const DeleteOptions& options);

}  // namespace rubato::kube
