// RawView: simdjson's DOM behind the reading interface of json::Value, so that one template decodes
// from either and the two decoders agree by construction. For .cc files only: includes simdjson.
// Views live as long as the RawDocument's thread parses nothing else.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <simdjson.h>

namespace rubato::kube {

class RawView {
 public:
  RawView() = default;
  explicit RawView(simdjson::dom::element element) : element_(element), present_(true) {}

  RawView operator[](std::string_view key) const {
    simdjson::dom::object object;
    if (!get(object)) return {};
    simdjson::dom::element found;
    if (object.at_key(key).get(found) != simdjson::SUCCESS) return {};
    return RawView(found);
  }
  bool is_null() const { return !present_ || element_.is_null(); }
  bool is_object() const { return present_ && element_.is_object(); }
  bool bool_or(bool fallback) const {
    bool value = fallback;
    return get(value) ? value : fallback;
  }
  std::int64_t int_or(std::int64_t fallback) const {
    std::int64_t value = fallback;
    // get() would convert a double that is whole; json::Value keeps the two apart.
    return present_ && element_.is_int64() && get(value) ? value : fallback;
  }
  std::string_view string_view_or(std::string_view fallback) const {
    std::string_view value;
    return get(value) ? value : fallback;
  }
  std::string string_or(std::string_view fallback) const {
    return std::string(string_view_or(fallback));
  }
  bool is_string() const { return present_ && element_.is_string(); }
  bool is_int() const { return present_ && element_.is_int64(); }

  template <class Visit>  // visit(RawView item)
  void for_items(Visit visit) const {
    simdjson::dom::array array;
    if (!get(array)) return;
    for (const auto item : array) visit(RawView(item));
  }
  template <class Visit>  // visit(std::string_view key, RawView value)
  void for_members(Visit visit) const {
    simdjson::dom::object object;
    if (!get(object)) return;
    for (const auto member : object) visit(member.key, RawView(member.value));
  }

 private:
  template <class T>
  bool get(T& out) const {
    return present_ && element_.get(out) == simdjson::SUCCESS;
  }
  simdjson::dom::element element_;
  bool present_ = false;
};

// Parses into a buffer that this thread reuses; the view is void after the thread's next call.
inline Result<RawView> parse_raw(std::string_view bytes) {
  thread_local simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto code = parser.parse(bytes.data(), bytes.size()).get(root);
      code != simdjson::SUCCESS) {
    return Error(Code::kInvalid, std::string("JSON: ") + simdjson::error_message(code));
  }
  return RawView(root);
}

}  // namespace rubato::kube
