#include "common/net/channel.h"

#include <charconv>

#include <boost/asio/ip/address.hpp>

namespace rubato::net {

bool is_address(const std::string& host) {
  boost::system::error_code code;
  boost::asio::ip::make_address(host, code);
  return !code;
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto invalid = [&](const char* why) {
    return Error(Code::kInvalid, "endpoint \"" + std::string(text.substr(0, 300)) + "\": " + why);
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return invalid("expected host:port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return invalid("an IPv6 address stands in brackets");
  }
  if (host.empty()) return invalid("no host");
  Endpoint endpoint{.host = std::string(host)};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (error != std::errc() || end != port.data() + port.size()) return invalid("bad port");
  return endpoint;
}

}  // namespace rubato::net
