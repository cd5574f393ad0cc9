#include "apiserver/memory/write_rules.h"

#include "apiserver/memory/builtin.h"
#include "apiserver/memory/object_meta.h"
#include "apiserver/memory/scale.h"
#include "apiserver/memory/schema.h"
#include "apiserver/memory/shape.h"
#include "apiserver/memory/whole_floats.h"

#include <algorithm>
#include <array>
#include <set>

namespace rubato::kube {
namespace {

using json::Value;

constexpr std::array kMetaFields = {"name",
                                    "generateName",
                                    "namespace",
                                    "selfLink",
                                    "uid",
                                    "resourceVersion",
                                    "generation",
                                    "creationTimestamp",
                                    "deletionTimestamp",
                                    "deletionGracePeriodSeconds",
                                    "labels",
                                    "annotations",
                                    "ownerReferences",
                                    "finalizers",
                                    "managedFields"};

// What a client may not decide: taken from the stored object on update.
constexpr std::array kServerMeta = {
    "name",       "generateName",      "namespace",         "uid",
    "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"};

std::string cap(const std::string& text, std::size_t bytes) { return text.substr(0, bytes); }

void prune_meta(Value& object, std::vector<std::string>& removed) {
  std::vector<std::string> unknown;
  for (const json::Member& member : object["metadata"].members())
    if (std::ranges::find(kMetaFields, member.first) == kMetaFields.end())
      unknown.push_back(member.first);
  for (const std::string& key : unknown) {
    object.at("metadata").erase(key);
    removed.push_back("metadata." + key);
  }
}

void drop_empty_meta(Value& object) {
  for (const char* key : {"labels", "annotations", "ownerReferences", "finalizers"}) {
    const Value* present = object["metadata"].find(key);
    if (present != nullptr && present->size() == 0) object.at("metadata").erase(key);
  }
  object.at("metadata").erase("managedFields");
  object.at("metadata").erase("selfLink");
}

// Everything but metadata and status: what metadata.generation counts.
bool spec_changed(const ResourceInfo& info, const Value& a, const Value& b) {
  const auto counts = [&](const std::string& key) {
    return key != "metadata" && !(key == "status" && (info.has_status || !info.custom));
  };
  for (const json::Member& member : a.members())
    if (counts(member.first) && !(b[member.first] == member.second)) return true;
  return std::ranges::any_of(b.members(), [&](const json::Member& member) {
    return counts(member.first) && !a.has(member.first);
  });
}

// That a body, or what a patch made of the object, cannot be decoded.
ApiError cannot_decode(const ResourceInfo& info, const Value& whole, const WriteContext& context,
                       const std::string& why) {
  if (!context.patch) return api_error::undecodable(info.type, why);
  const FieldError cause = field::invalid("patch", json::dump(whole), why);
  return ApiError{
      422, "Invalid", " \"\" is invalid: patch: " + cause.message,
      Value::object({{"causes", Value::array({Value::object({{"reason", cause.reason},
                                                             {"message", cause.message},
                                                             {"field", cause.field}})})}})};
}

ApiError strict_error(const ResourceInfo& info, const Value& object,
                      const std::vector<std::string>& unknown, const WriteContext& context,
                      const Value& whole) {
  if (context.apply)
    return api_error::internal("failed to create typed patch object (" + to_string(key_of(object)) +
                               "; " + info.type.api_version() + ", Kind=" + info.type.kind +
                               "): ." + unknown.front() + ": field not declared in schema");
  std::string list;
  for (const std::string& path : unknown)
    list += (list.empty() ? "" : ", ") + ("unknown field \"" + path + "\"");
  return cannot_decode(info, whole, context, "strict decoding error: " + list);
}

// After these the real server does not try CEL rules: a rule could not read the object, or would
// cost more than was estimated. Bounds of numbers, patterns and the like do not keep it from
// trying.
bool blocks_rules(const FieldError& error) {
  return error.reason == "FieldValueRequired" || error.reason == "FieldValueNotSupported" ||
         error.reason == "FieldValueTypeInvalid" || error.reason == "FieldValueTooLong" ||
         error.reason == "FieldValueTooMany";
}

}  // namespace

void WriteRules::set_validator(const std::string& storage_id, Validator validator) {
  validators_[storage_id] = std::move(validator);
}

std::string WriteRules::now() const { return to_rfc3339(clock_.wall()); }

std::string WriteRules::new_uid() {
  const std::uint64_t high = (rng_.next() & ~0xF000ULL) | 0x4000ULL;
  const std::uint64_t low = (rng_.next() & ~(3ULL << 62U)) | (2ULL << 62U);
  static const char* const kHex = "0123456789abcdef";
  std::string out;
  for (int i = 60; i >= 0; i -= 4) out += kHex[(high >> static_cast<unsigned>(i)) & 15U];
  for (int i = 60; i >= 0; i -= 4) out += kHex[(low >> static_cast<unsigned>(i)) & 15U];
  for (const std::size_t at : {20U, 16U, 12U, 8U}) out.insert(at, "-");
  return out;
}

Answer<Done> WriteRules::check_type(const ResourceInfo& info, Value& object,
                                    const WriteContext& context) const {
  if (const auto why = shape::misfit(info.custom ? "" : info.type.kind, object))
    return cannot_decode(info, object, context, *why);
  const std::string kind = object["kind"].string_or("");
  const std::string version = object["apiVersion"].string_or("");
  if (info.custom && kind.empty())
    return api_error::bad_request("Object 'Kind' is missing in '" + cap(json::dump(object), 200) +
                                  "'");
  if (!kind.empty() && kind != info.type.kind)
    return api_error::bad_request("the kind in the data (" + kind +
                                  ") does not match the expected kind (" + info.type.kind + ")");
  if (!version.empty() && version != info.type.api_version())
    return api_error::bad_request("the API version in the data (" + version +
                                  ") does not match the expected API version (" +
                                  info.type.api_version() + ")");
  object.set("kind", info.type.kind);
  object.set("apiVersion", info.type.api_version());
  if (object["metadata"].is_null()) object.set("metadata", Value::object());
  return Done{};
}

Answer<Done> WriteRules::check_namespace(const ResourceInfo& info, const std::string& ns,
                                         Value& object) const {
  if (!info.type.namespaced) {
    object.at("metadata").erase("namespace");
    return Done{};
  }
  const std::string named = namespace_of(object);
  if (!named.empty() && !ns.empty() && named != ns)
    return api_error::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request");
  const std::string effective = ns.empty() ? named : ns;
  const ResourceType namespaces{"", "v1", "namespaces", "Namespace", false};
  const Value* found = store_.find({"namespaces", effective});
  if (found == nullptr) return api_error::not_found(namespaces, effective);
  if (is_deleting(*found)) {
    ApiError error = api_error::forbidden(info.type, name_of(object),
                                          "unable to create new content in namespace " + effective +
                                              " because it is being terminated");
    error.details.set(
        "causes",
        Value::array({Value::object({{"reason", "NamespaceTerminating"},
                                     {"message", "namespace " + effective + " is being terminated"},
                                     {"field", "metadata.namespace"}})}));
    return error;
  }
  object.at("metadata").set("namespace", effective);
  return Done{};
}

// Unknown fields, then defaults.
Answer<Done> WriteRules::fit_schema(const ResourceInfo& info, Value& object,
                                    const WriteContext& context) const {
  if (!info.custom) return Done{};
  const Value whole = object;
  std::vector<std::string> unknown;
  prune_meta(object, unknown);
  if (!info.schema.is_null()) {
    const std::vector<std::string> more = schema::prune(object, info.schema);
    unknown.insert(unknown.end(), more.begin(), more.end());
  }
  if (!unknown.empty() && (context.apply || context.field_validation == "Strict"))
    return strict_error(info, object, unknown, context, whole);
  if (!unknown.empty() && context.field_validation != "Ignore" && context.warnings != nullptr)
    for (const std::string& path : unknown)
      context.warnings->push_back("unknown field \"" + path + "\"");
  if (!info.schema.is_null()) schema::fill_defaults(object, info.schema);
  return Done{};
}

void WriteRules::schema_errors(const ResourceInfo& info, const Value& old_object, Value& object,
                               std::vector<FieldError>& errors) const {
  if (info.schema.is_null()) return;
  const std::vector<FieldError> scale = scale_errors(info, object);  // reads no float
  const std::vector<schema::WholeFloat> floats =
      schema::take_whole_floats(object, old_object, info.schema);
  const std::vector<FieldError> found = schema::validate(object, old_object, info.schema);
  errors.insert(errors.end(), found.begin(), found.end());
  errors.insert(errors.end(), scale.begin(), scale.end());
  if (std::any_of(errors.begin(), errors.end(), blocks_rules)) {  // of metadata, too
    if (schema::has_rules(info.schema))
      errors.push_back(field::invalid(
          "<nil>", nullptr,
          "some validation rules were not checked because the object was invalid; correct the "
          "existing errors to complete validation"));
    return;
  }
  const schema::UnreadRules unread = schema::unread_rules(floats, old_object, info.schema);
  errors.insert(errors.end(), unread.errors.begin(), unread.errors.end());
  const auto rules = validators_.find(info.storage_id);
  if (rules == validators_.end()) return;
  for (const RuleFailure& failure : rules->second(old_object, object))
    if (std::ranges::find(unread.messages, failure.message) == unread.messages.end())
      errors.push_back({failure.field, "Invalid value: " + failure.message, "FieldValueInvalid"});
}

void WriteRules::set_new_meta(const ResourceInfo& info, Value& object) {
  Value& meta = object.at("metadata");
  meta.set("uid", new_uid());
  meta.set("creationTimestamp", now());
  meta.erase("deletionTimestamp");
  meta.erase("deletionGracePeriodSeconds");
  meta.erase("generation");
  if (info.has_generation) meta.set("generation", 1);
}

std::string WriteRules::next_cluster_ip() {
  constexpr std::uint32_t kPart = 250;  // of the third and of the fourth byte: from 1 on
  std::set<std::string_view> taken;
  for (const auto& [key, service] : store_.objects("services"))
    taken.insert(service["spec"]["clusterIP"].string_view_or(""));
  for (std::uint32_t tried = 0; tried < kPart * kPart; ++tried) {
    ++next_ip_;
    std::string ip = "10.96." + std::to_string(1 + next_ip_ / kPart % kPart) + "." +
                     std::to_string(1 + next_ip_ % kPart);
    if (!taken.contains(ip)) return ip;
  }
  return "";
}

Answer<Value> WriteRules::prepare_create(const ResourceInfo& info, const std::string& ns,
                                         Value object, const WriteContext& context) {
  TRY([[maybe_unused]] const Done typed, check_type(info, object, context));
  TRY([[maybe_unused]] const Done placed, check_namespace(info, ns, object));
  TRY([[maybe_unused]] const Done fits, fit_schema(info, object, context));
  Value& meta = object.at("metadata");
  const std::string prefix = meta["generateName"].string_or("");
  if (meta["name"].string_view_or("").empty() && !prefix.empty()) {
    static const std::string kLetters = "bcdfghjklmnpqrstvwxz2456789";
    std::string name = cap(prefix, 58);
    for (int i = 0; i < 5; ++i) name += kLetters[rng_.below(kLetters.size())];
    meta.set("name", name);
  }
  if (!meta["resourceVersion"].string_view_or("").empty())
    return ApiError{500, "", "resourceVersion should not be set on objects to be created", {}};
  drop_empty_meta(object);
  if (info.custom && info.has_status) object.erase("status");
  if (!info.custom) {
    const builtin::Lookups lookups{[&](const std::string& name) {
                                     const Value* found =
                                         store_.find({"priorityclasses.scheduling.k8s.io", name});
                                     return found == nullptr ? Value() : *found;
                                   },
                                   [&] { return next_cluster_ip(); }};
    if (auto refused = builtin::prepare_create(info, object, lookups)) return *refused;
  }
  std::vector<FieldError> errors =
      validate_meta(object["metadata"], builtin::wants_label_name(info));
  if (info.custom) {
    schema_errors(info, Value(), object, errors);
  } else {
    const auto more = builtin::validate_create(info, object);
    errors.insert(errors.end(), more.begin(), more.end());
  }
  if (!errors.empty()) return api_error::invalid(info.type, name_of(object), errors);
  set_new_meta(info, object);
  return object;
}

Answer<Value> WriteRules::prepare_update(const ResourceInfo& info, const Value& old_object,
                                         Value candidate, const WriteContext& context) {
  TRY([[maybe_unused]] const Done typed, check_type(info, candidate, context));
  if (!namespace_of(candidate).empty() && namespace_of(candidate) != namespace_of(old_object))
    return api_error::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request");
  TRY([[maybe_unused]] const Done fits, fit_schema(info, candidate, context));
  const bool status_write = context.subresource == "status" && info.has_status;
  Value updated = candidate;
  if (status_write && info.custom) {
    updated = old_object;
    if (const Value* status = candidate.find("status"))
      updated.set("status", *status);
    else
      updated.erase("status");
  } else if (status_write) {  // built-in: metadata may change, too, the rest may not
    updated = old_object;
    updated.set("metadata", candidate["metadata"]);
    updated.at("metadata").set("ownerReferences", old_object["metadata"]["ownerReferences"]);
    updated.set("status", candidate["status"]);
  } else if (info.has_status) {
    if (const Value* status = old_object.find("status"))
      updated.set("status", *status);
    else
      updated.erase("status");
  }
  Value own_meta = updated["metadata"];
  for (const char* key : kServerMeta) {
    if (const Value* kept = old_object["metadata"].find(key))
      own_meta.set(key, *kept);
    else
      own_meta.erase(key);
  }
  own_meta.set("resourceVersion", old_object["metadata"]["resourceVersion"]);
  updated.set("metadata", std::move(own_meta));
  drop_empty_meta(updated);
  if (!info.custom && !status_write) builtin::prepare_update(info, old_object, updated);
  const Value& meta = updated["metadata"];  // from here on nothing is added to `updated`
  std::vector<FieldError> errors = validate_meta_update(old_object["metadata"], meta);
  if (errors.empty()) errors = validate_meta(meta, builtin::wants_label_name(info));
  // As on the real server 600.0 is another value than 600 here, though it is stored as that.
  const bool is_new_generation = info.has_generation && spec_changed(info, old_object, updated);
  if (info.custom) {
    schema_errors(info, old_object, updated, errors);
  } else if (!status_write) {
    const auto more = builtin::validate_update(info, old_object, updated);
    errors.insert(errors.end(), more.begin(), more.end());
  }
  if (!errors.empty()) return api_error::invalid(info.type, name_of(old_object), errors);
  if (is_new_generation)
    updated.at("metadata").set("generation", old_object["metadata"]["generation"].int_or(0) + 1);
  return updated;
}

}  // namespace rubato::kube
