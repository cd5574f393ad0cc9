// json::Value: one JSON value. Objects keep their order, integers stay apart from doubles, depth
// and size are bounded when parsed. Reading never throws and never inserts: a missing member reads
// as null, so `v["spec"]["gpus"]["min"].int_or(1)` is always safe. Parsing and printing are
// nlohmann::json's (json.cc); the container is our own so that this header stays light.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace rubato::json {

class Value;
using Member = std::pair<std::string, Value>;

class Value {
 public:
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;  // in order of insertion, keys unique

  enum class Type { kNull, kBool, kInt, kDouble, kString, kArray, kObject };

  Value() = default;
  Value(std::nullptr_t) {}     // NOLINT: implicit by design, so that literals read like JSON
  Value(bool b) : data_(b) {}  // NOLINT
  Value(int i) : data_(static_cast<std::int64_t>(i)) {}                 // NOLINT
  Value(unsigned i) : data_(static_cast<std::int64_t>(i)) {}            // NOLINT
  Value(long i) : data_(static_cast<std::int64_t>(i)) {}                // NOLINT
  Value(long long i) : data_(static_cast<std::int64_t>(i)) {}           // NOLINT
  Value(unsigned long i) : data_(static_cast<std::int64_t>(i)) {}       // NOLINT
  Value(unsigned long long i) : data_(static_cast<std::int64_t>(i)) {}  // NOLINT
  Value(double d) : data_(d) {}                                         // NOLINT
  Value(const char* s) : data_(std::string(s)) {}                       // NOLINT
  Value(std::string_view s) : data_(std::string(s)) {}                  // NOLINT
  Value(std::string s) : data_(std::move(s)) {}                         // NOLINT

  // object({{"kind", "Pod"}, {"metadata", Value::object({{"name", "a"}})}}); array({1, 2, 3})
  static Value object(std::initializer_list<Member> members = {});
  static Value array(std::initializer_list<Value> items = {});

  Type type() const;
  bool is_null() const { return type() == Type::kNull; }
  bool is_bool() const { return type() == Type::kBool; }
  bool is_int() const { return type() == Type::kInt; }
  bool is_number() const { return type() == Type::kInt || type() == Type::kDouble; }
  bool is_string() const { return type() == Type::kString; }
  bool is_array() const { return type() == Type::kArray; }
  bool is_object() const { return type() == Type::kObject; }

  // Reading. A value of another type gives the fallback; *_or never converts between types, except
  // double_or, which accepts an integer.
  bool bool_or(bool fallback) const;
  std::int64_t int_or(std::int64_t fallback) const;
  double double_or(double fallback) const;
  std::string string_or(std::string fallback) const;
  std::string_view string_view_or(std::string_view fallback) const;
  // The items of an array, the members of an object; empty for any other type.
  const Array& items() const;
  const Object& members() const;
  std::size_t size() const;  // items or members; 0 for scalars

  // Member or item; the null value when there is none.
  const Value& operator[](std::string_view key) const;
  const Value& operator[](const char* key) const { return (*this)[std::string_view(key)]; }
  const Value& operator[](std::size_t index) const;
  const Value& operator[](int index) const { return (*this)[static_cast<std::size_t>(index)]; }
  const Value* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Writing. set() and at() turn null into an object; push_back() turns null into an array; any
  // other type is a broken invariant.
  Value& at(std::string_view key);                // the member, created as null when missing
  Value& at(std::size_t index);                   // index < size()
  Value& set(std::string_view key, Value value);  // returns *this
  bool erase(std::string_view key);               // true when it was there
  void push_back(Value item);
  Array& mutable_items();
  Object& mutable_members();

  // Deep equality; objects compare without regard to order, 1 and 1.0 differ.
  bool operator==(const Value& other) const;

 private:
  // Arrays and objects share their content between copies until one of them is written
  // (copy-on-write), so passing Values by value is cheap. Not thread-safe to write while shared
  // copies are read through the same Value; distinct Values may live in distinct threads.
  struct ArrayBox;
  struct ObjectBox;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, std::shared_ptr<ArrayBox>,
               std::shared_ptr<ObjectBox>>
      data_;
};

struct Limits {
  std::size_t depth = 64;
  std::size_t bytes = 64u << 20;
  bool refuses_duplicates = false;  // of keys
};
// Errors are kInvalid and name what was being read ("jobs[3].gpus.min") and the byte offset, or a
// duplicate key and where it stands. Duplicate keys: the last wins, unless they are refused.
// Integers outside int64 become doubles. Invalid UTF-8 is refused.
Result<Value> parse(std::string_view text, const Limits& limits = {});
// Compact when indent < 0. Invalid UTF-8 is replaced, never thrown.
std::string dump(const Value& value, int indent = -1);

// RFC 6901. "" is the whole document; "/a~1b/0" escapes as usual.
const Value* resolve(const Value& root, std::string_view pointer);
std::string escape_pointer(std::string_view key);

// RFC 7386 merge patch, in place.
void merge_patch(Value& target, const Value& patch);
// RFC 6902 JSON patch (add, remove, replace, move, copy, test). All or nothing. A failed `test` is
// kConflict with reason "TestFailed"; any other fault is kInvalid; both name the operation's index.
Status json_patch(Value& target, const Value& operations);

}  // namespace rubato::json
