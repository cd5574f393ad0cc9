// Rules for metadata that every kind shares: names, labels, owner references. Pure functions;
// messages are the real server's.
#pragma once

#include "apiserver/memory/api_error.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato::kube {

// Storage id of the kind of kinds.
inline constexpr const char* kDefinitions = "customresourcedefinitions.apiextensions.k8s.io";

bool is_dns_label(std::string_view text);      // RFC 1123, at most 63
bool is_dns_subdomain(std::string_view text);  // RFC 1123, at most 253

// Checks name, labels, annotations' size, owner references, finalizers. `label_name`: the name must
// be a DNS label (namespaces, services), not a subdomain.
std::vector<FieldError> validate_meta(const json::Value& meta, bool label_name);

// Finalizers may not be added once deletion has begun.
std::vector<FieldError> validate_meta_update(const json::Value& old_meta,
                                             const json::Value& new_meta);

// Takes more bytes, in JSON, than etcd takes in one request.
bool is_too_large(const json::Value& object);

// The body of a request under the name that its URL gives; 400 when it has no place for a name.
Answer<json::Value> with_name(json::Value body, const std::string& name);

bool is_deleting(const json::Value& object);  // metadata.deletionTimestamp is set
bool has_finalizer(const json::Value& object, std::string_view name);
void remove_finalizer(json::Value& object, std::string_view name);
void add_finalizer(json::Value& object, const std::string& name);

}  // namespace rubato::kube
