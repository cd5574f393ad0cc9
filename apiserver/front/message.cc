#include "apiserver/front/message.h"

#include <algorithm>
#include <charconv>

namespace rubato::apiserver {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (i + 2 >= text.size()) return Error(Code::kInvalid, "bad escape in the URL");
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return Error(Code::kInvalid, "bad escape in the URL");
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

}  // namespace

std::string Request::param(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return value;
  return "";
}

bool Request::flag(std::string_view name) const {
  const auto found = std::ranges::find(query, name, &std::pair<std::string, std::string>::first);
  if (found == query.end()) return false;
  const std::string& value = found->second;
  return value != "false" && value != "False" && value != "0";
}

kube::Answer<std::int64_t> Request::integer(std::string_view name, std::int64_t otherwise) const {
  const std::string text = param(name);
  if (text.empty()) return otherwise;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return kube::api_error::bad_request(
      "strconv.ParseInt: parsing " + json::dump(json::Value(text)) + ": " +
      (error == std::errc::result_out_of_range ? "value out of range" : "invalid syntax"));
}

Status parse_target(std::string_view target, Request& request) {
  const std::size_t question = target.find('?');
  const std::string_view path = target.substr(0, question);
  TRY(request.path, decode(path, false));
  std::size_t at = 0;
  while (at < path.size()) {
    std::size_t slash = path.find('/', at);
    if (slash == std::string_view::npos) slash = path.size();
    if (slash > at) {
      TRY(std::string segment, decode(path.substr(at, slash - at), false));
      request.segments.push_back(std::move(segment));
    }
    at = slash + 1;
  }
  if (question == std::string_view::npos) return ok();
  std::string_view rest = target.substr(question + 1);
  request.raw_query = std::string(rest);
  while (!rest.empty()) {
    const std::size_t amp = rest.find('&');
    const std::string_view pair = rest.substr(0, amp);
    const std::size_t equals = pair.find('=');
    TRY(std::string key, decode(pair.substr(0, equals), true));
    std::string value;
    if (equals != std::string_view::npos) {
      TRY(value, decode(pair.substr(equals + 1), true));
    }
    request.query.emplace_back(std::move(key), std::move(value));
    rest = amp == std::string_view::npos ? std::string_view() : rest.substr(amp + 1);
  }
  return ok();
}

std::string percent_encode(std::string_view text) {
  static const char* const kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[u >> 4U];
      out += kHex[u & 15U];
    }
  }
  return out;
}

Response json_response(int status, const json::Value& body) {
  Response out;
  out.status = status;
  out.body = json::dump(body) + "\n";
  return out;
}

Response error_response(const kube::ApiError& error) {
  return json_response(error.code, error.to_status());
}

}  // namespace rubato::apiserver
