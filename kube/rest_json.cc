// Splits answers into the bytes of their objects, without building values. Only brackets and
// strings are looked at: whether an object is JSON is seen when it is decoded. (simdjson's
// On-Demand would do, but the packaged one picks its slowest kernel unless the whole program is
// built for a newer processor.)
#include "kube/errors.h"
#include "kube/rest_transport.h"

#include <optional>
#include <utility>

namespace rubato::kube {
namespace {

Error malformed(const char* what) {
  return Error(Code::kInternal, std::string(what) + " is not what a Kubernetes API server writes");
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // visit(key, value) for each member, as written; false when the text is not an object.
  template <class Visit>
  bool members(Visit visit) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      const std::string_view key = value();
      if (key.size() < 2 || key.front() != '"' || !take(':')) return false;
      const std::string_view item = value();
      if (item.empty()) return false;
      visit(key.substr(1, key.size() - 2), item);
    } while (take(','));
    return take('}');
  }
  // visit(value) for each item; false when the text is not an array.
  template <class Visit>
  bool items(Visit visit) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      const std::string_view item = value();
      if (item.empty()) return false;
      visit(item);
    } while (take(','));
    return take(']');
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  bool take(char wanted) {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  // Past the string that starts at at_; false when it does not end.
  bool skip_string() {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c == '\\') ++at_;
    }
    at_ = text_.size();
    return false;
  }
  // The value that comes next, as written; empty when there is none.
  std::string_view value() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    const std::size_t start = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!skip_string()) return {};
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
        continue;
      } else if (c == '}' || c == ']') {
        if (depth == 0) break;  // the end of a number, true, false or null
        --depth;
        ++at_;
      } else if (depth == 0 && (c == ',' || is_space(c))) {
        break;
      } else {
        ++at_;
        continue;
      }
      if (depth == 0) break;
    }
    return depth == 0 ? text_.substr(start, at_ - start) : std::string_view{};
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<EventType> event_type(std::string_view text) {
  if (text == "ADDED") return EventType::kAdded;
  if (text == "MODIFIED") return EventType::kModified;
  if (text == "DELETED") return EventType::kDeleted;
  if (text == "BOOKMARK") return EventType::kBookmark;
  return std::nullopt;
}

Result<WatchEvent> make_event(std::string_view type, std::string_view object) {
  if (type == "ERROR") {
    TRY(const json::Value status, json::parse(object));
    return error_from_status(0, status).in("watch");
  }
  const auto kind = event_type(type);
  if (!kind) return Error(Code::kInternal, "watch event of unknown type " + std::string(type));
  WatchEvent event;
  event.type = *kind;
  event.raw = std::string(object);
  return event;
}

// What every API server writes: {"type":"T","object":…}. Whether the object is JSON is seen when it
// is decoded.
std::optional<std::pair<std::string_view, std::string_view>> split_usual(std::string_view line) {
  constexpr std::string_view kHead = R"({"type":")";
  constexpr std::string_view kMiddle = R"(","object":)";
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  if (line.substr(0, kHead.size()) != kHead || line.back() != '}') return std::nullopt;
  const auto end = line.find('"', kHead.size());
  if (end == std::string_view::npos || line.substr(end, kMiddle.size()) != kMiddle)
    return std::nullopt;
  const std::string_view type = line.substr(kHead.size(), end - kHead.size());
  const auto start = end + kMiddle.size();
  return std::pair(type, line.substr(start, line.size() - 1 - start));
}

}  // namespace

Result<WatchEvent> parse_watch_line(std::string_view line) {
  if (const auto usual = split_usual(line)) return make_event(usual->first, usual->second);
  std::string_view type;
  std::string_view object;
  const bool whole = Scanner(line).members([&](std::string_view key, std::string_view value) {
    if (key == "type" && value.size() > 2) type = value.substr(1, value.size() - 2);
    if (key == "object") object = value;
  });
  if (!whole || type.empty() || object.empty()) return malformed("watch event");
  return make_event(type, object);
}

Result<ObjectList> split_list(const std::string& body) {
  ObjectList list;
  bool understood = true;
  const bool whole = Scanner(body).members([&](std::string_view key, std::string_view value) {
    if (key == "metadata") {
      const auto metadata = json::parse(value);
      understood = understood && metadata.ok();
      if (!metadata.ok()) return;
      list.resource_version = metadata.value()["resourceVersion"].string_or("");
      list.continue_token = metadata.value()["continue"].string_or("");
    } else if (key == "items" && value != "null") {
      understood = understood && Scanner(value).items([&](std::string_view item) {
        list.raw_items.emplace_back(item);
      });
    }
  });
  if (!whole || !understood) return malformed("list");
  return list;
}

}  // namespace rubato::kube
