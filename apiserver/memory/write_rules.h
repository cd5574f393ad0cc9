// WriteRules: what happens to an object between a request and the store: metadata, pruning,
// defaults, validation, which part of it a subresource may change, and generation. Not thread-safe:
// MemoryServer's mutex guards it.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/object_store.h"
#include "apiserver/memory/registry.h"
#include "common/clock.h"
#include "common/rng.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace rubato::kube {

// A rule that does not hold: the field and the text that a CEL rule of the CRD would give.
struct RuleFailure {
  std::string field;
  std::string message;
};
// `old_object` is null on creation. Must be pure: it runs under the server's mutex.
using Validator = std::function<std::vector<RuleFailure>(const json::Value& old_object,
                                                         const json::Value& new_object)>;

struct WriteContext {
  std::string subresource;
  std::string field_validation;  // "" is Strict for creation through kubectl, Warn otherwise
  bool apply = false;            // how unknown fields are worded: server-side apply,
  bool patch = false;            // another patch, or neither
  std::vector<std::string>* warnings = nullptr;
};

class WriteRules {
 public:
  WriteRules(const Registry& registry, const ObjectStore& store, Clock& clock, Rng& rng)
      : registry_(registry), store_(store), clock_(clock), rng_(rng) {}

  // `storage_id`: "trainingjobs.rubato.dev".
  void set_validator(const std::string& storage_id, Validator validator);

  // The object as it will be stored (without resourceVersion), in storage form.
  Answer<json::Value> prepare_create(const ResourceInfo& info, const std::string& ns,
                                     json::Value object, const WriteContext& context);
  Answer<json::Value> prepare_update(const ResourceInfo& info, const json::Value& old_object,
                                     json::Value new_object, const WriteContext& context);

  std::string new_uid();
  std::string now() const;  // RFC 3339, seconds

 private:
  Answer<Done> check_type(const ResourceInfo& info, json::Value& object,
                          const WriteContext& context) const;
  Answer<Done> check_namespace(const ResourceInfo& info, const std::string& ns,
                               json::Value& object) const;
  Answer<Done> fit_schema(const ResourceInfo& info, json::Value& object,
                          const WriteContext& context) const;
  void set_new_meta(const ResourceInfo& info, json::Value& object);
  // An address that no stored Service has; empty when there is none.
  std::string next_cluster_ip();
  void schema_errors(const ResourceInfo& info, const json::Value& old_object, json::Value& object,
                     std::vector<FieldError>& errors) const;

  const Registry& registry_;
  const ObjectStore& store_;
  Clock& clock_;
  Rng& rng_;
  std::map<std::string, Validator> validators_;
  std::uint32_t next_ip_ = 0;
};

}  // namespace rubato::kube
