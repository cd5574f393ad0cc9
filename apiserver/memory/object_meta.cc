#include "apiserver/memory/object_meta.h"

#include <algorithm>
#include <cctype>

namespace rubato::kube {
namespace {

using json::Value;

constexpr std::size_t kNameBytes = 253;
constexpr std::size_t kLabelBytes = 63;
constexpr std::size_t kAnnotationBytes = 256 * 1024;
constexpr std::size_t kObjectBytes = 1536 * 1024;  // etcd's --max-request-bytes
constexpr std::size_t kValueBytes = 4;             // of a value in JSON beside its text, about

const char* const kSubdomainText =
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const char* const kLabelText =
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const char* const kKeyText =
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const char* const kValueText =
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

bool lower_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool alnum(char c) { return lower_alnum(c) || (c >= 'A' && c <= 'Z'); }

// [A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?
bool is_qualified_part(std::string_view text) {
  if (text.empty() || !alnum(text.front()) || !alnum(text.back())) return false;
  return std::ranges::all_of(text,
                             [](char c) { return alnum(c) || c == '-' || c == '_' || c == '.'; });
}

// Takes what the value has in JSON, about, from `left`; false when that does not suffice.
bool takes(const Value& value, std::size_t& left) {
  const std::size_t own = kValueBytes + value.string_view_or("").size();
  if (own > left) return false;
  left -= own;
  for (const Value& item : value.items())
    if (!takes(item, left)) return false;
  for (const auto& [key, member] : value.members()) {
    if (key.size() > left) return false;
    left -= key.size();
    if (!takes(member, left)) return false;
  }
  return true;
}

void check_label_key(const std::string& path, const std::string& key,
                     std::vector<FieldError>& errors) {
  const std::size_t slash = key.find('/');
  const std::string name = slash == std::string::npos ? key : key.substr(slash + 1);
  if (slash != std::string::npos && !is_dns_subdomain(key.substr(0, slash)))
    errors.push_back(field::invalid(path, key, std::string("prefix part ") + kSubdomainText));
  if (name.empty())
    errors.push_back(field::invalid(path, key, "name part must be non-empty"));
  else if (name.size() > kLabelBytes)
    errors.push_back(field::invalid(path, key, "name part must be no more than 63 bytes"));
  if (!is_qualified_part(name)) errors.push_back(field::invalid(path, key, kKeyText));
}

void check_labels(const Value& labels, std::vector<FieldError>& errors) {
  for (const json::Member& label : labels.members()) {
    check_label_key("metadata.labels", label.first, errors);
    const std::string value = label.second.string_or("");
    if (value.size() > kLabelBytes)
      errors.push_back(field::invalid("metadata.labels", value, "must be no more than 63 bytes"));
    if (!value.empty() && !is_qualified_part(value))
      errors.push_back(field::invalid("metadata.labels", value, kValueText));
  }
}

void check_annotations(const Value& annotations, std::vector<FieldError>& errors) {
  std::size_t bytes = 0;
  for (const json::Member& a : annotations.members())
    bytes += a.first.size() + a.second.string_view_or("").size();
  if (bytes > kAnnotationBytes)
    errors.push_back({"metadata.annotations", "Too long: may not be more than 262144 bytes",
                      "FieldValueTooLong"});
}

void check_owners(const Value& owners, std::vector<FieldError>& errors) {
  std::size_t controllers = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::string path = "metadata.ownerReferences[" + std::to_string(i) + "]";
    const Value& owner = owners[i];
    const std::pair<const char*, const char*> needed[] = {
        {"apiVersion", "version must not be empty"},
        {"kind", "must not be empty"},
        {"name", "must not be empty"},
        {"uid", "must not be empty"}};
    for (const auto& [key, text] : needed)
      if (owner[key].string_view_or("").empty())
        errors.push_back(field::invalid(path + "." + key, "", text));
    controllers += owner["controller"].bool_or(false) ? 1 : 0;
  }
  if (controllers > 1)
    errors.push_back(field::invalid("metadata.ownerReferences", owners,
                                    "Only one reference can have Controller set to true"));
}

void check_finalizers(const Value& finalizers, std::vector<FieldError>& errors) {
  const std::string path = "metadata.finalizers";
  for (const Value& name : finalizers.items()) check_label_key(path, name.string_or(""), errors);
  const auto& names = finalizers.items();
  if (std::ranges::count(names, Value("orphan")) > 0 &&
      std::ranges::count(names, Value("foregroundDeletion")) > 0)
    errors.push_back(field::invalid(path, finalizers,
                                    "finalizer orphan and foregroundDeletion cannot be both set"));
}

}  // namespace

bool is_dns_label(std::string_view text) {
  if (text.empty() || text.size() > kLabelBytes) return false;
  if (!lower_alnum(text.front()) || !lower_alnum(text.back())) return false;
  return std::ranges::all_of(text, [](char c) { return lower_alnum(c) || c == '-'; });
}

bool is_dns_subdomain(std::string_view text) {
  if (text.empty() || text.size() > kNameBytes) return false;
  char before = '.';
  for (const char c : text) {
    if (!lower_alnum(c) && c != '-' && c != '.') return false;
    if (before == '.' && !lower_alnum(c)) return false;
    if (before == '-' && c == '.') return false;
    before = c;
  }
  return lower_alnum(before);
}

std::vector<FieldError> validate_meta(const Value& meta, bool label_name) {
  std::vector<FieldError> errors;
  const std::string name = meta["name"].string_or("");
  if (name.empty()) {
    errors.push_back(field::required("metadata.name", "name or generateName is required"));
  } else if (label_name && !is_dns_label(name)) {
    errors.push_back(
        field::invalid("metadata.name", name,
                       name.size() > kLabelBytes ? "must be no more than 63 bytes" : kLabelText));
  } else if (!label_name && !is_dns_subdomain(name)) {
    errors.push_back(field::invalid(
        "metadata.name", name,
        name.size() > kNameBytes ? "must be no more than 253 bytes" : kSubdomainText));
  }
  check_labels(meta["labels"], errors);
  check_annotations(meta["annotations"], errors);
  check_owners(meta["ownerReferences"], errors);
  check_finalizers(meta["finalizers"], errors);
  return errors;
}

std::vector<FieldError> validate_meta_update(const Value& old_meta, const Value& new_meta) {
  std::vector<FieldError> errors;
  if (old_meta["deletionTimestamp"].is_null()) return errors;
  std::string added;
  for (const Value& f : new_meta["finalizers"].items())
    if (std::ranges::find(old_meta["finalizers"].items(), f) ==
        old_meta["finalizers"].items().end())
      added += (added.empty() ? "" : ", ") + json::dump(f);
  if (!added.empty())
    errors.push_back(field::forbidden(
        "metadata.finalizers",
        "no new finalizers can be added if the object is being deleted, found new finalizers "
        "[]string{" +
            added + "}"));
  return errors;
}

bool is_too_large(const Value& object) {
  std::size_t left = kObjectBytes;
  return !takes(object, left);
}

Answer<Value> with_name(Value body, const std::string& name) {
  const bool has_place =
      body.is_object() && (body["metadata"].is_null() || body["metadata"].is_object());
  if (!has_place)
    return api_error::bad_request("the body of the request is not an object with metadata");
  body.at("metadata").set("name", name);
  return body;
}

bool is_deleting(const Value& object) { return !object["metadata"]["deletionTimestamp"].is_null(); }

bool has_finalizer(const Value& object, std::string_view name) {
  for (const Value& f : object["metadata"]["finalizers"].items())
    if (f.string_view_or("") == name) return true;
  return false;
}

void remove_finalizer(Value& object, std::string_view name) {
  if (!has_finalizer(object, name)) return;
  Value left = Value::array();
  for (const Value& f : object["metadata"]["finalizers"].items())
    if (f.string_view_or("") != name) left.push_back(f);
  if (left.size() == 0)
    object.at("metadata").erase("finalizers");
  else
    object.at("metadata").set("finalizers", std::move(left));
}

void add_finalizer(Value& object, const std::string& name) {
  if (!has_finalizer(object, name)) object.at("metadata").at("finalizers").push_back(name);
}

}  // namespace rubato::kube
