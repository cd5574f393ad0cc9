// Text to value (nlohmann's SAX parser: iterative, checks UTF-8) and back (our own writer: shortest
// digits that read back as the same double, and a double always looks like one).
#include "common/json_boxes.h"
#include "common/utf8.h"
#include "common/words.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include <nlohmann/json.hpp>

namespace rubato::json {
namespace {

using Sax = nlohmann::json_sax<nlohmann::json>;

// From this size on, duplicate keys are looked for with an index.
constexpr std::size_t kKeyIndexFrom = 16;

// Keeps the last value of each key, at the place of the first. Returns the first key that was there
// again; none: each was there once.
std::optional<std::string> drop_duplicates(Value::Object& members) {
  const std::size_t size = members.size();
  if (size < 2) return std::nullopt;
  std::size_t kept = 0;
  std::optional<std::string> again;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < size; ++i) {
    std::size_t place = kept;
    if (size < kKeyIndexFrom) {
      for (std::size_t j = 0; j < kept && place == kept; ++j) {
        if (members[j].first == members[i].first) place = j;
      }
    } else {
      place = index.emplace(members[i].first, kept).first->second;
    }
    if (place != kept && !again) again = members[i].first;
    if (place != i) members[place] = std::move(members[i]);
    if (place == kept) ++kept;
  }
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(kept), members.end());
  return again;
}

class Builder : public Sax {
 public:
  explicit Builder(const Limits& limits) : limits_(limits) {}

  bool null() override { return put(Value()); }
  bool boolean(bool value) override { return put(Value(value)); }
  bool number_integer(number_integer_t value) override { return put(Value(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return put(Value(static_cast<double>(value)));
    }
    return put(Value(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return put(Value(value)); }
  bool string(string_t& value) override { return put(Value(std::move(value))); }
  bool binary(binary_t&) override { return fail(0, "binary"); }

  bool start_object(std::size_t) override { return open(false); }
  bool key(string_t& value) override {
    open_.back().members.emplace_back(std::move(value), Value());
    return true;
  }
  bool end_object() override {
    const auto again = drop_duplicates(open_.back().members);
    if (again && limits_.refuses_duplicates) {
      const std::string path = path_of(open_.size() - 1);
      has_duplicate_ = true;
      return fail(0, (path.empty() ? "the document" : path) + " has " + dump(excerpt(*again)) +
                         " twice; write each field once");
    }
    Value value = Value::object();
    value.mutable_members() = std::move(open_.back().members);
    open_.pop_back();
    return put(std::move(value));
  }
  bool start_array(std::size_t) override { return open(true); }
  bool end_array() override {
    Value value = Value::array();
    value.mutable_items() = std::move(open_.back().items);
    open_.pop_back();
    return put(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return fail(position, error.what());
  }

  Value take() { return std::move(root_); }
  bool too_deep() const { return too_deep_; }
  std::size_t error_position() const { return position_; }
  const std::string& error_text() const { return text_; }
  // An object had a key twice: error_text() says which one, and where that is.
  bool has_duplicate() const { return has_duplicate_; }
  // Of what was being read: "jobs[3].gpus.min". "": the document.
  std::string path() const { return path_of(open_.size()); }

 private:
  struct Level {
    bool is_array = false;
    Value::Array items;
    Value::Object members;
  };

  bool open(bool is_array) {
    if (open_.size() >= limits_.depth) {
      too_deep_ = true;
      return fail(0, "nested deeper than " + std::to_string(limits_.depth));
    }
    open_.emplace_back().is_array = is_array;
    return true;
  }
  bool put(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_array) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.back().second = std::move(value);
    }
    return true;
  }
  bool fail(std::size_t position, std::string text) {
    position_ = position;
    text_ = std::move(text);
    return false;
  }

  // Through so many of the open arrays and objects.
  std::string path_of(std::size_t levels) const {
    std::string path;
    for (std::size_t i = 0; i < levels; ++i) {
      const Level& level = open_[i];
      if (level.is_array)
        path += "[" + std::to_string(level.items.size()) + "]";
      else if (!level.members.empty())
        path += (path.empty() ? "" : ".") + level.members.back().first;
    }
    return excerpt(path);
  }

  const Limits limits_;
  std::vector<Level> open_;
  bool has_duplicate_ = false;
  Value root_;
  bool too_deep_ = false;
  std::size_t position_ = 0;
  std::string text_;
};

// The offset of the bracket that opens level `depth_max` + 1. Only called after the parser read
// that far, so strings are well formed up to there.
std::size_t offset_of_depth(std::string_view text, std::size_t depth_max) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > depth_max) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return text.size();
}

class Writer {
 public:
  explicit Writer(int indent) : indent_(indent) {}
  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    switch (value.type()) {
      case Value::Type::kNull:
        out_ += "null";
        return;
      case Value::Type::kBool:
        out_ += value.bool_or(false) ? "true" : "false";
        return;
      case Value::Type::kInt:
        write_int(value.int_or(0));
        return;
      case Value::Type::kDouble:
        write_double(value.double_or(0));
        return;
      case Value::Type::kString:
        write_string(value.string_view_or({}));
        return;
      case Value::Type::kArray:
        write_array(value.items(), level);
        return;
      case Value::Type::kObject:
        write_object(value.members(), level);
        return;
    }
  }

 private:
  void write_int(std::int64_t value) {
    char buffer[24];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    out_.append(buffer, end);
  }
  void write_double(double value) {
    if (!std::isfinite(value)) {  // JSON has no word for it
      out_ += "null";
      return;
    }
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    const std::string_view digits(buffer, static_cast<std::size_t>(end - buffer));
    out_ += digits;
    if (digits.find_first_of(".e") == std::string_view::npos) out_ += ".0";
  }
  void write_string(std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    out_ += '"';
    for (std::size_t i = 0; i < text.size();) {
      const auto c = static_cast<unsigned char>(text[i]);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += text[i++];
      } else if (c < 0x20) {
        write_control(c, kHex);
        ++i;
      } else if (c < 0x80) {
        out_ += text[i++];
      } else if (const std::size_t length = utf8_length(text, i); length > 0) {
        out_.append(text, i, length);
        i += length;
      } else {
        out_ += "\xef\xbf\xbd";  // U+FFFD
        ++i;
      }
    }
    out_ += '"';
  }
  void write_control(unsigned char c, const char* hex) {
    switch (c) {
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        out_ += "\\u00";
        out_ += hex[c >> 4];
        out_ += hex[c & 15];
    }
  }
  void write_array(const Value::Array& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    bool first = true;
    for (const Value& item : items) {
      if (!first) out_ += ',';
      first = false;
      line_break(level + 1);
      write(item, level + 1);
    }
    line_break(level);
    out_ += ']';
  }
  void write_object(const Value::Object& members, int level) {
    if (members.empty()) {
      out_ += "{}";
      return;
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : members) {
      if (!first) out_ += ',';
      first = false;
      line_break(level + 1);
      write_string(key);
      out_ += indent_ < 0 ? ":" : ": ";
      write(value, level + 1);
    }
    line_break(level);
    out_ += '}';
  }
  void line_break(int level) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(level) * static_cast<std::size_t>(indent_), ' ');
  }

  int indent_;
  std::string out_;
};

}  // namespace

Result<Value> parse(std::string_view text, const Limits& limits) {
  if (text.size() > limits.bytes) {
    return Error(Code::kInvalid, "JSON of " + std::to_string(text.size()) + " bytes, limit " +
                                     std::to_string(limits.bytes) + " (at offset 0)");
  }
  Builder builder(limits);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  if (builder.has_duplicate()) return Error(Code::kInvalid, "JSON: " + builder.error_text());
  const std::size_t position =
      builder.too_deep() ? offset_of_depth(text, limits.depth) : builder.error_position();
  const std::string path = builder.path();
  return Error(Code::kInvalid, (path.empty() ? "JSON: " : "JSON, at " + path + ": ") +
                                   builder.error_text() + " (at offset " +
                                   std::to_string(position) + ")");
}

std::string dump(const Value& value, int indent) {
  Writer writer(indent);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace rubato::json
