// JSON pointer (RFC 6901), merge patch (RFC 7386), JSON patch (RFC 6902).
#include "common/json.h"

#include <algorithm>
#include <charconv>

namespace rubato::json {
namespace {

// Patches come from other processes: without these bounds a few `copy` operations would double a
// document again and again. The API server has the same two kinds of bound.
constexpr std::size_t kOperationsMax = 10'000;
constexpr std::size_t kCopiedNodesMax = 1'000'000;
constexpr std::size_t kNodeBytes = 16;  // so much text counts as a node more
constexpr std::size_t kDepthMax = 64;

// "/a~1b/0" to {"a/b", "0"}; empty optional when it is no pointer.
std::optional<std::vector<std::string>> split_pointer(std::string_view pointer) {
  std::vector<std::string> keys;
  if (pointer.empty()) return keys;
  if (pointer.front() != '/') return std::nullopt;
  for (std::size_t i = 0; i < pointer.size(); ++i) {
    const char c = pointer[i];
    if (c == '/') {
      keys.emplace_back();
    } else if (c != '~') {
      keys.back() += c;
    } else {
      ++i;
      if (i >= pointer.size() || (pointer[i] != '0' && pointer[i] != '1')) return std::nullopt;
      keys.back() += pointer[i] == '0' ? '~' : '/';
    }
  }
  return keys;
}

// As RFC 6901 has it: decimal, no sign, no leading zero.
bool is_plain_index(std::string_view key) {
  return key.find_first_not_of("0123456789") == std::string_view::npos &&
         (key.size() == 1 || !key.starts_with('0'));
}

// Of an array of so many items. As kube-apiserver's JSON patch reads it, wider than RFC 6901: a
// sign and leading zeros will do, and what is negative counts from the end.
std::optional<std::size_t> to_index(std::string_view key, std::size_t size) {
  if (key.starts_with('+') && !key.starts_with("+-")) key.remove_prefix(1);
  std::int64_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (key.empty() || error != std::errc() || end != key.data() + key.size()) return std::nullopt;
  if (index < 0) index += static_cast<std::int64_t>(size);
  const auto place = static_cast<std::size_t>(index);
  return index >= 0 && place < size ? std::optional(place) : std::nullopt;
}

const Value* child(const Value& value, const std::string& key) {
  if (value.is_object()) return value.find(key);
  const auto index = to_index(key, value.items().size());
  return index ? &value.items()[*index] : nullptr;
}

// Counts nodes up to `nodes_max` and measures depth; false when a bound is passed.
bool within(const Value& value, std::size_t depth_left, std::size_t& nodes_left) {
  const std::size_t nodes = 1 + value.string_view_or("").size() / kNodeBytes;
  if (nodes_left < nodes) return false;
  nodes_left -= nodes;
  if (!value.is_array() && !value.is_object()) return true;
  if (depth_left == 0) return false;
  for (const Value& item : value.items()) {
    if (!within(item, depth_left - 1, nodes_left)) return false;
  }
  for (const auto& [key, member] : value.members()) {
    if (!within(member, depth_left - 1, nodes_left)) return false;
  }
  return true;
}

using Keys = std::vector<std::string>;

class Patch {
 public:
  explicit Patch(Value target) : target_(std::move(target)) {}
  Value take() { return std::move(target_); }

  Status apply(const Value& operation) {
    if (!operation.is_object()) return invalid("not an object");
    const std::string op = operation["op"].string_or("");
    TRY(const Keys path, pointer(operation, "path"));
    if (op == "remove") return remove(path);
    if (op == "move" || op == "copy") {
      TRY(const Keys from, pointer(operation, "from"));
      return op == "move" ? move(from, path) : copy(from, path);
    }
    if (op != "add" && op != "replace" && op != "test") return invalid("unknown op \"" + op + "\"");
    const Value* value = operation.find("value");
    if (!value) return invalid(op + " without a value");
    if (op == "add") return add(path, *value);
    return op == "replace" ? replace(path, *value) : test(path, *value);
  }

 private:
  static Error invalid(std::string what) { return {Code::kInvalid, std::move(what)}; }
  static Result<Keys> pointer(const Value& operation, const char* member) {
    const Value& text = operation[member];
    if (!text.is_string()) return invalid(std::string("no string \"") + member + "\"");
    auto keys = split_pointer(text.string_view_or({}));
    if (!keys) return invalid("bad pointer \"" + text.string_or("") + "\"");
    return std::move(*keys);
  }

  // Looks before it writes, so that a wrong path unshares nothing.
  const Value* look(const Keys& path, std::size_t count) const {
    const Value* value = &target_;
    for (std::size_t i = 0; i < count && value; ++i) value = child(*value, path[i]);
    return value;
  }
  // The value at the first `count` keys, for writing; it must exist.
  Value& reach(const Keys& path, std::size_t count) {
    Value* value = &target_;
    for (std::size_t i = 0; i < count; ++i) {
      value =
          value->is_object() ? &value->at(path[i]) : &value->at(*to_index(path[i], value->size()));
    }
    return *value;
  }

  Status add(const Keys& path, Value value) {
    if (path.size() > kDepthMax || !within(value, kDepthMax - path.size(), nodes_left_)) {
      return invalid("the result would be too deep or too large");
    }
    if (path.empty()) {
      target_ = std::move(value);
      return ok();
    }
    const Value* parent = look(path, path.size() - 1);
    if (!parent) return invalid("add: the parent of the path does not exist");
    if (parent->is_object()) {
      reach(path, path.size() - 1).set(path.back(), std::move(value));
      return ok();
    }
    if (!parent->is_array()) return invalid("add: the parent is neither object nor array");
    const std::size_t end = parent->size();
    const auto index = path.back() == "-" ? end : to_index(path.back(), end + 1);
    if (!index) return invalid("add: index out of range");
    Value::Array& items = reach(path, path.size() - 1).mutable_items();
    items.insert(items.begin() + static_cast<std::ptrdiff_t>(*index), std::move(value));
    return ok();
  }

  Status remove(const Keys& path) {
    if (!look(path, path.size())) return invalid("remove: the path does not exist");
    if (path.empty()) {
      target_ = Value();
      return ok();
    }
    Value& parent = reach(path, path.size() - 1);
    if (parent.is_object()) {
      parent.erase(path.back());
    } else {
      Value::Array& items = parent.mutable_items();
      items.erase(items.begin() +
                  static_cast<std::ptrdiff_t>(*to_index(path.back(), items.size())));
    }
    return ok();
  }

  Status replace(const Keys& path, Value value) {
    if (!look(path, path.size())) return invalid("replace: the path does not exist");
    if (path.size() > kDepthMax || !within(value, kDepthMax - path.size(), nodes_left_)) {
      return invalid("the result would be too deep or too large");
    }
    reach(path, path.size()) = std::move(value);
    return ok();
  }

  Status move(const Keys& from, const Keys& path) {
    const Value* source = look(from, from.size());
    if (!source) return invalid("move: \"from\" does not exist");
    if (from == path) return ok();
    if (from.size() < path.size() && std::equal(from.begin(), from.end(), path.begin())) {
      return invalid("move: into itself");
    }
    Value value = *source;
    TRY_OK(remove(from));
    return add(path, std::move(value));
  }

  Status copy(const Keys& from, const Keys& path) {
    const Value* source = look(from, from.size());
    if (!source) return invalid("copy: \"from\" does not exist");
    return add(path, *source);
  }

  Status test(const Keys& path, const Value& value) const {
    const Value* found = look(path, path.size());
    if (found && same(*found, value)) return ok();
    Error error(Code::kConflict, found ? "test failed: found " + dump(*found).substr(0, 256)
                                       : "test failed: the path does not exist");
    error.set_reason("TestFailed");
    return error;
  }

  // RFC 6902 §4.6 compares numbers by value: here 1 equals 1.0.
  static bool same(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number() && a.type() != b.type()) {
      return a.double_or(0) == b.double_or(0);
    }
    if (a.type() != b.type() || a.size() != b.size()) return false;
    if (a.is_array()) {
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), same);
    }
    if (!a.is_object()) return a == b;
    for (const auto& [key, value] : a.members()) {
      const Value* other = b.find(key);
      if (!other || !same(value, *other)) return false;
    }
    return true;
  }

  Value target_;
  std::size_t nodes_left_ = kCopiedNodesMax;
};

}  // namespace

const Value* resolve(const Value& root, std::string_view pointer) {
  const auto keys = split_pointer(pointer);
  if (!keys) return nullptr;
  const Value* value = &root;
  for (std::size_t i = 0; i < keys->size() && value; ++i) {
    const std::string& key = (*keys)[i];
    if (value->is_array() && !is_plain_index(key)) return nullptr;
    value = child(*value, key);
  }
  return value;
}

std::string escape_pointer(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

void merge_patch(Value& target, const Value& patch) {
  if (!patch.is_object()) {
    target = patch;
    return;
  }
  // Target and patch may be one value. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const Value hold = patch;
  if (!target.is_object()) target = Value::object();
  for (const auto& [key, value] : hold.members()) {
    if (value.is_null()) {
      target.erase(key);
    } else {
      merge_patch(target.at(key), value);
    }
  }
}

Status json_patch(Value& target, const Value& operations) {
  if (!operations.is_array()) return Error(Code::kInvalid, "a JSON patch is an array");
  if (operations.size() > kOperationsMax) {
    return Error(Code::kInvalid, "more than " + std::to_string(kOperationsMax) + " operations");
  }
  Patch patch(target);
  std::size_t index = 0;
  for (const Value& operation : operations.items()) {
    if (auto status = patch.apply(operation); !status.ok()) {
      return status.error().in("operation " + std::to_string(index));
    }
    ++index;
  }
  target = patch.take();
  return ok();
}

}  // namespace rubato::json
