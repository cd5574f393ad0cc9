// Writing: create, update, patch, remove and the subresources that are posted.
#include "apiserver/memory/memory_server.h"
#include "apiserver/memory/merge.h"
#include "apiserver/memory/object_meta.h"
#include "apiserver/memory/pod.h"
#include "apiserver/memory/scale.h"
#include "apiserver/memory/shape.h"

namespace rubato::kube {
namespace {

using json::Value;

// Kinds of bodies that subresources take.
const ResourceType kBinding{"", "v1", "bindings", "Binding", true};
const ResourceType kEviction{"policy", "v1", "evictions", "Eviction", true};
const ResourceType kScale{"autoscaling", "v1", "scales", "Scale", true};

Value success(int code = 201) {
  return Value::object({{"kind", "Status"},
                        {"apiVersion", "v1"},
                        {"metadata", Value::object()},
                        {"status", "Success"},
                        {"code", code}});
}

Value condition(const char* type, const char* reason, const char* message, const std::string& now) {
  return Value::object({{"type", type},
                        {"status", "True"},
                        {"lastTransitionTime", now},
                        {"reason", reason},
                        {"message", message}});
}

std::vector<std::string> patch_types(const ResourceInfo& info) {
  std::vector<std::string> out = {"application/json-patch+json", "application/merge-patch+json"};
  if (!info.custom) out.emplace_back("application/strategic-merge-patch+json");
  out.emplace_back("application/apply-patch+yaml");
  return out;
}

// The real server names the resource here, not the kind.
ApiError needs_version(ResourceType type, const std::string& name) {
  type.kind = type.plural;
  return api_error::invalid(
      type, name,
      {field::invalid("metadata.resourceVersion", 0, "must be specified for an update")});
}

// A patch may not give an object another name, or none.
std::optional<ApiError> other_name(const Value& patched, const std::string& name) {
  const Value& meta = patched["metadata"];
  const Value& found = meta["name"];
  // What is no object is told by who looks at the shape.
  const bool has_place = meta.is_object() || (patched.is_object() && meta.is_null());
  if (!has_place || found == Value(name) || (!found.is_null() && !found.is_string()))
    return std::nullopt;
  if (found.string_view_or("").empty())
    return api_error::bad_request("the name of the object (" + name +
                                  " based on URL) was undeterminable: name must be provided");
  return api_error::bad_request("the name of the object (" + found.string_or("") +
                                ") does not match the name on the URL (" + name + ")");
}

DeleteOptions delete_options_of(const Value& body) {
  DeleteOptions out;
  out.uid = body["preconditions"]["uid"].string_or("");
  out.resource_version = body["preconditions"]["resourceVersion"].string_or("");
  out.grace_period_seconds = pod::asked_grace(body["gracePeriodSeconds"].int_or(-1));
  out.propagation = body["propagationPolicy"].string_or("Background");
  return out;
}

// As etcd says it.
ApiError request_too_large() { return {500, "", "etcdserver: request is too large", {}}; }

ApiError not_kept(const Error& lost) {
  return api_error::internal("this API server cannot keep what is written: " + lost.what() +
                             "; when it can be written again, start the server anew");
}

}  // namespace

template <class T, class Write>
Answer<T> MemoryServer::kept(const Write& write) const {
  if (store_.lost()) return not_kept(*store_.lost());
  Answer<T> answer = write();
  if (store_.lost()) return not_kept(*store_.lost());
  return answer;
}

// What the CRD's controllers would write: names accepted, established.
Value MemoryServer::establish(Value crd) const {
  Value status = crd["status"];
  const Value& names = crd["spec"]["names"];
  if (status["acceptedNames"] == names && status.has("storedVersions")) return crd;
  const std::string now = rules_.now();
  status.set("acceptedNames", names);
  if (status["conditions"].size() == 0)
    status.set("conditions",
               Value::array({condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
                             condition("Established", "InitialNamesAccepted",
                                       "the initial names have been accepted", now)}));
  Value stored = Value::array();
  for (const Value& version : crd["spec"]["versions"].items())
    if (version["storage"].bool_or(false)) stored.push_back(version["name"]);
  status.set("storedVersions", std::move(stored));
  crd.set("status", std::move(status));
  return crd;
}

Answer<Written> MemoryServer::create(const ResourceType& type, const std::string& ns,
                                     const Value& object, const WriteOptions& options) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  return kept<Written>([&]() -> Answer<Written> {
    if (!options.subresource.empty()) return post_subresource(*info, ns, object, options);
    if (info->storage_id == "events") expire_events();
    return create_locked(*info, ns, object, options, false);
  });
}

Answer<Written> MemoryServer::create_locked(const ResourceInfo& info, const std::string& ns,
                                            Value object, const WriteOptions& options, bool apply) {
  Written out;
  out.created = true;
  const WriteContext context{"", options.field_validation, apply, false, &out.warnings};
  TRY(Value ready, rules_.prepare_create(info, ns, std::move(object), context));
  const StoreId id{info.storage_id, store_key(namespace_of(ready), name_of(ready))};
  if (store_.find(id) != nullptr) return api_error::already_exists(info.type, name_of(ready));
  if (info.storage_id == kDefinitions) ready = establish(std::move(ready));
  ready = stored_form(info, std::move(ready));
  if (!options.dry_run) {
    if (is_too_large(ready)) return request_too_large();
    ready = store_.put(id, std::move(ready));
    lifecycle_.after_write(id);
  }
  out.object = present(info, ready);
  return out;
}

Answer<Written> MemoryServer::post_subresource(const ResourceInfo& info, const std::string& ns,
                                               const Value& object, const WriteOptions& options) {
  const bool is_pod = info.storage_id == "pods";
  if (!is_pod || (options.subresource != "binding" && options.subresource != "eviction"))
    return api_error::no_such_resource();
  const bool evicts = options.subresource == "eviction";
  const ResourceType& body_type = evicts ? kEviction : kBinding;
  if (const auto why = shape::misfit(body_type.kind, object))
    return api_error::undecodable(body_type, *why);
  const std::string name = name_of(object);
  const StoreId id{info.storage_id, store_key(ns.empty() ? namespace_of(object) : ns, name)};
  const Value* found = store_.find(id);
  if (found == nullptr) return api_error::not_found(info.type, name);
  if (evicts) {
    const Value& how = object["deleteOptions"];
    const bool dry_run = options.dry_run || how["dryRun"].size() > 0;
    TRY([[maybe_unused]] const Removal removal,
        lifecycle_.remove(info, id.key, delete_options_of(how), dry_run));
    return Written{success(), true, {}};
  }
  TRY(Value bound, pod::bind(info, *found, object, rules_.now()));
  if (info.has_generation)
    bound.at("metadata").set("generation", bound["metadata"]["generation"].int_or(0) + 1);
  if (!options.dry_run) {
    store_.put(id, std::move(bound));
    lifecycle_.after_write(id);
  }
  return Written{success(), true, {}};
}

Answer<Written> MemoryServer::update(const ResourceType& type, const Key& key, const Value& object,
                                     const WriteOptions& options) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  if (!object["metadata"]["name"].is_null() && name_of(object) != key.name)
    return api_error::bad_request("the name of the object (" + name_of(object) +
                                  ") does not match the name on the URL (" + key.name + ")");
  const Modify replace = [&](const Value&) { return with_name(object, key.name); };
  return kept<Written>([&] {
    if (options.subresource == "scale" && has_scale(*info))
      return change_scale(*info, key, replace, options);
    return change(*info, key, replace, options, false, true);
  });
}

Answer<Written> MemoryServer::patch(const ResourceType& type, const Key& key, PatchType kind,
                                    const Value& body, const WriteOptions& options) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  if (kind == PatchType::kStrategicMerge && info->custom)
    return api_error::unsupported_media_type(patch_types(*info));
  const bool wants_list = kind == PatchType::kJson;
  if (wants_list ? !body.is_array() : !body.is_object())
    return api_error::bad_request(std::string("error decoding patch: it is not a JSON ") +
                                  (wants_list ? "array" : "object"));
  const Modify modify = [&](Value current) {
    return patched(*info, std::move(current), kind, body);
  };
  return kept<Written>([&]() -> Answer<Written> {
    if (options.subresource == "scale" && has_scale(*info))
      return change_scale(*info, key, modify, options);
    const bool apply = kind == PatchType::kApply;
    if (apply && options.subresource.empty() && store_.find(id_of(*info, key)) == nullptr) {
      if (const auto refused = other_name(body, key.name); refused && !name_of(body).empty())
        return *refused;
      TRY(Value object, with_name(body, key.name));
      return create_locked(*info, key.ns, std::move(object), options, true);
    }
    return change(*info, key, modify, options, apply, false);
  });
}

Answer<Value> MemoryServer::patched(const ResourceInfo& info, Value current, PatchType kind,
                                    const Value& body) const {
  switch (kind) {
    case PatchType::kJson: {
      const Status done = json::json_patch(current, body);
      if (!done.ok())
        return api_error::json_patch_failed(done.error().code() == Code::kConflict,
                                            done.error().what());
      return current;
    }
    case PatchType::kMerge:
      json::merge_patch(current, body);
      return current;
    case PatchType::kApply:
      merge::apply(current, body, info.schema);
      return current;
    case PatchType::kStrategicMerge:
      merge::strategic(current, body);
      return current;
  }
  return current;
}

Answer<Written> MemoryServer::change(const ResourceInfo& info, const Key& key, const Modify& modify,
                                     const WriteOptions& options, bool apply, bool put) {
  if (!options.subresource.empty() && !(options.subresource == "status" && info.has_status))
    return api_error::no_such_resource();
  const StoreId id = id_of(info, key);
  const Value* found = store_.find(id);
  if (found == nullptr && put && info.create_on_update && options.subresource.empty()) {
    TRY(const Value body, modify(Value()));
    return create_locked(info, key.ns, body, options, false);
  }
  if (found == nullptr) return api_error::not_found(info.type, key.name);
  const Value current = present(info, *found);
  TRY(Value candidate, modify(current));
  if (!put) {
    if (const auto refused = other_name(candidate, key.name)) return *refused;
  }
  const std::string version = resource_version_of(candidate);
  if (put && version.empty() && !info.unconditional_update)
    return needs_version(info.type, key.name);
  if (!version.empty() && version != resource_version_of(current))
    return api_error::modified(info.type, key.name);
  if (const std::string uid = uid_of(candidate); !uid.empty() && uid != uid_of(current))
    return api_error::conflict(info.type, key.name,
                               "Precondition failed: UID in precondition: " + uid +
                                   ", UID in object meta: " + uid_of(current));
  Written out;
  const WriteContext context{options.subresource, options.field_validation, apply, !put,
                             &out.warnings};
  TRY(Value ready, rules_.prepare_update(info, current, std::move(candidate), context));
  if (info.storage_id == kDefinitions) ready = establish(std::move(ready));
  out.object = ready;
  if (ready == current || options.dry_run) return out;
  if (is_too_large(ready)) return request_too_large();
  ready = store_.put(id, stored_form(info, std::move(ready)));
  out.object = present(info, ready);
  lifecycle_.after_write(id);
  return out;
}

Answer<Written> MemoryServer::change_scale(const ResourceInfo& info, const Key& key,
                                           const Modify& modify, const WriteOptions& options) {
  WriteOptions plain = options;
  plain.subresource.clear();
  const Modify through = [&](Value object) -> Answer<Value> {
    TRY(const Value scale, modify(scale_of(info, object)));
    if (const auto why = shape::misfit(kScale.kind, scale))
      return api_error::undecodable(kScale, *why);
    if (scale["spec"]["replicas"].int_or(0) < 0)
      return api_error::invalid(kScale, key.name,
                                {field::invalid("spec.replicas", scale["spec"]["replicas"],
                                                "should be a non-negative integer")});
    set_scale(info, object, scale);
    return object;
  };
  TRY(Written out, change(info, key, through, plain, false, false));
  out.object = scale_of(info, out.object);
  return out;
}

Answer<Removal> MemoryServer::remove(const ResourceType& type, const Key& key,
                                     const DeleteOptions& options, bool dry_run) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  TRY(Removal removal, kept<Removal>([&] {
        return lifecycle_.remove(*info, id_of(*info, key).key, options, dry_run);
      }));
  removal.object = present(*info, removal.object);
  return removal;
}

Answer<std::vector<Value>> MemoryServer::remove_collection(const ResourceType& type,
                                                           const std::string& ns,
                                                           const ListOptions& which,
                                                           const DeleteOptions& options,
                                                           bool dry_run) {
  TRY(const Listing found, list(type, ns, which));
  for (const Value& object : found.items) {
    const auto removed = remove(type, key_of(object), options, dry_run);
    if (!removed.ok() && removed.error().code != 404) return removed.error();
  }
  return found.items;
}

}  // namespace rubato::kube
