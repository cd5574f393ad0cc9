// Splits answers into objects without building values (simdjson).
#include "operator/kube/errors.h"
#include "operator/kube/rest_transport.h"

#include <optional>

#include <simdjson.h>

namespace rubato::kube {
namespace {

namespace ondemand = simdjson::ondemand;

Error malformed(const char* what, simdjson::error_code code) {
  return Error(Code::kInternal, std::string(what) + ": " + simdjson::error_message(code));
}

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
  thread_local ondemand::parser parser;
  const simdjson::padded_string padded(line);
  ondemand::document document;
  std::string_view type;
  std::string_view raw;
  ondemand::object object;
  if (const auto code = parser.iterate(padded).get(document); code != simdjson::SUCCESS)
    return malformed("watch event", code);
  if (const auto code = document["type"].get(type); code != simdjson::SUCCESS)
    return malformed("watch event: type", code);
  const std::string kept(type);
  if (const auto code = document["object"].get(object); code != simdjson::SUCCESS)
    return malformed("watch event: object", code);
  if (const auto code = object.raw_json().get(raw); code != simdjson::SUCCESS)
    return malformed("watch event: object", code);
  return make_event(kept, raw);
}

Result<ObjectList> split_list(std::string body) {
  thread_local ondemand::parser parser;
  const std::size_t size = body.size();
  body.reserve(size + simdjson::SIMDJSON_PADDING);
  ondemand::document document;
  if (const auto code = parser.iterate(body.data(), size, body.capacity()).get(document);
      code != simdjson::SUCCESS)
    return malformed("list", code);
  ObjectList list;
  std::string_view text;
  if (document["metadata"]["resourceVersion"].get(text) == simdjson::SUCCESS)
    list.resource_version = std::string(text);
  if (document["metadata"]["continue"].get(text) == simdjson::SUCCESS)
    list.continue_token = std::string(text);
  ondemand::array items;
  if (document["items"].get(items) != simdjson::SUCCESS) return list;  // null when empty
  for (auto item : items) {
    ondemand::object object;
    std::string_view raw;
    if (const auto code = item.get(object); code != simdjson::SUCCESS)
      return malformed("list item", code);
    if (const auto code = object.raw_json().get(raw); code != simdjson::SUCCESS)
      return malformed("list item", code);
    list.raw_items.emplace_back(raw);
  }
  return list;
}

}  // namespace rubato::kube
