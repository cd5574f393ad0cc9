// The container: reading, writing, comparing. Parsing and printing: json_text.cc; pointers and
// patches: json_patch.cc.
#include "common/json_boxes.h"

#include <algorithm>
#include <unordered_map>

namespace rubato::json {
namespace {

const Value kNullValue;
const Value::Array kNoItems;
const Value::Object kNoMembers;

// From this size on, comparing objects builds an index instead of scanning.
constexpr std::size_t kIndexFrom = 16;

bool same_members(const Value::Object& a, const Value::Object& b) {
  if (a.size() != b.size()) return false;
  if (std::equal(a.begin(), a.end(), b.begin(),
                 [](const Member& x, const Member& y) { return x.first == y.first; })) {
    return std::equal(a.begin(), a.end(), b.begin(),
                      [](const Member& x, const Member& y) { return x.second == y.second; });
  }
  if (a.size() < kIndexFrom) {
    return std::all_of(a.begin(), a.end(), [&](const Member& x) {
      return std::any_of(b.begin(), b.end(), [&](const Member& y) {
        return x.first == y.first && x.second == y.second;
      });
    });
  }
  std::unordered_map<std::string_view, const Value*> index;
  for (const auto& [key, value] : b) index.emplace(key, &value);
  return std::all_of(a.begin(), a.end(), [&](const Member& x) {
    const auto found = index.find(x.first);
    return found != index.end() && *found->second == x.second;
  });
}

// The box's content for writing: copied first when another Value shares it.
template <class Box>
auto& unshare(std::shared_ptr<Box>& box) {
  if (!box) {
    box = std::make_shared<Box>();
  } else if (box.use_count() != 1) {
    box = std::make_shared<Box>(*box);
  } else {
#ifdef __SANITIZE_THREAD__
    const auto acquire = box;  // ThreadSanitizer does not model fences; this is one it sees
#else
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the last other owner's drop
#endif
  }
  return box->content;
}

}  // namespace

Value Value::object(std::initializer_list<Member> members) {
  Value value;
  value.data_ = std::make_shared<ObjectBox>();
  for (const auto& [key, member] : members) value.set(key, member);
  return value;
}

Value Value::array(std::initializer_list<Value> items) {
  Value value;
  value.data_ = std::make_shared<ArrayBox>(ArrayBox{Array(items)});
  return value;
}

Value::Type Value::type() const { return static_cast<Type>(data_.index()); }

bool Value::bool_or(bool fallback) const {
  const auto* b = std::get_if<bool>(&data_);
  return b ? *b : fallback;
}

std::int64_t Value::int_or(std::int64_t fallback) const {
  const auto* i = std::get_if<std::int64_t>(&data_);
  return i ? *i : fallback;
}

double Value::double_or(double fallback) const {
  if (const auto* i = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*i);
  const auto* d = std::get_if<double>(&data_);
  return d ? *d : fallback;
}

std::string Value::string_or(std::string fallback) const {
  if (const auto* s = std::get_if<std::string>(&data_)) return *s;
  return fallback;
}

std::string_view Value::string_view_or(std::string_view fallback) const {
  const auto* s = std::get_if<std::string>(&data_);
  return s ? std::string_view(*s) : fallback;
}

// A moved-from array or object has no box: it reads as empty.
const Value::Array& Value::items() const {
  const auto* box = std::get_if<std::shared_ptr<ArrayBox>>(&data_);
  return box && *box ? (*box)->content : kNoItems;
}

const Value::Object& Value::members() const {
  const auto* box = std::get_if<std::shared_ptr<ObjectBox>>(&data_);
  return box && *box ? (*box)->content : kNoMembers;
}

std::size_t Value::size() const { return is_object() ? members().size() : items().size(); }

const Value& Value::operator[](std::string_view key) const {
  const Value* value = find(key);
  return value ? *value : kNullValue;
}

const Value& Value::operator[](std::size_t index) const {
  const Array& all = items();
  return index < all.size() ? all[index] : kNullValue;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : members()) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value& Value::at(std::string_view key) {
  Object& all = mutable_members();
  for (auto& [name, value] : all) {
    if (name == key) return value;
  }
  return all.emplace_back(std::string(key), Value()).second;
}

Value& Value::at(std::size_t index) {
  Array& all = mutable_items();
  CHECK_LT(index, all.size());
  return all[index];
}

Value& Value::set(std::string_view key, Value value) {
  at(key) = std::move(value);
  return *this;
}

bool Value::erase(std::string_view key) {
  if (!find(key)) return false;
  Object& all = mutable_members();
  all.erase(std::find_if(all.begin(), all.end(), [&](const Member& m) { return m.first == key; }));
  return true;
}

void Value::push_back(Value item) { mutable_items().push_back(std::move(item)); }

Value::Array& Value::mutable_items() {
  if (is_null()) data_ = std::make_shared<ArrayBox>();
  auto* box = std::get_if<std::shared_ptr<ArrayBox>>(&data_);
  CHECK(box != nullptr);
  return unshare(*box);
}

Value::Object& Value::mutable_members() {
  if (is_null()) data_ = std::make_shared<ObjectBox>();
  auto* box = std::get_if<std::shared_ptr<ObjectBox>>(&data_);
  CHECK(box != nullptr);
  return unshare(*box);
}

bool Value::operator==(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_array()) return &items() == &other.items() || items() == other.items();
  if (is_object())
    return &members() == &other.members() || same_members(members(), other.members());
  return data_ == other.data_;
}

}  // namespace rubato::json
