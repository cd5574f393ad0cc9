// The resource verbs of Router: parameters and bodies in, objects, lists and tables out.
#include "apiserver/front/body.h"
#include "apiserver/front/router.h"
#include "apiserver/front/table.h"
#include "apiserver/memory/object_meta.h"
#include "apiserver/memory/pod.h"
#include "apiserver/memory/shape.h"

namespace rubato::apiserver {
namespace {

using json::Value;
using kube::Answer;

constexpr std::chrono::seconds kWatchDefault{45 * 60};  // when the client names no timeout
constexpr std::chrono::seconds kWatchMax{24 * 3600};

bool wants_table(const Request& request) {
  return request.accept.find("as=Table") != std::string::npos;
}
bool wants_metadata(const Request& request) {
  return request.accept.find("as=PartialObjectMetadata") != std::string::npos;
}

Value partial(const Value& object) {
  return Value::object({{"kind", "PartialObjectMetadata"},
                        {"apiVersion", "meta.k8s.io/v1"},
                        {"metadata", object["metadata"]}});
}

kube::ApiError bad_options(const char* kind, const std::vector<kube::FieldError>& errors) {
  return kube::api_error::invalid({"meta.k8s.io", "v1", "options", kind, false}, "", errors);
}

Value all_of(const Request& request, const char* name) {
  Value values = Value::array();
  for (const auto& [key, value] : request.query)
    if (key == name) values.push_back(value);
  return values;
}

void check_dry_run(const Value& words, std::vector<kube::FieldError>& errors) {
  for (const Value& word : words.items())
    if (word.string_view_or("") != "All")
      return errors.push_back(kube::field::not_supported("dryRun", words, {"All"}));
}

// `kind` of the options: "CreateOptions". `applies`: they are of a server-side apply.
Answer<kube::WriteOptions> write_options(const Request& request, const std::string& subresource,
                                         const char* kind, bool applies = false) {
  constexpr std::size_t kManagerBytes = 128;
  kube::WriteOptions out;
  out.subresource = subresource;
  out.field_manager = request.param("fieldManager");
  out.force = request.flag("force");
  out.field_validation = request.param("fieldValidation");
  const Value dry_run = all_of(request, "dryRun");
  out.dry_run = dry_run.size() > 0;
  std::vector<kube::FieldError> errors;
  if (out.force && !applies)
    errors.push_back(kube::field::forbidden("force", "may not be specified for non-apply patch"));
  if (out.field_manager.empty() && applies)
    errors.push_back(kube::field::required("fieldManager", "is required for apply patch"));
  if (out.field_manager.size() > kManagerBytes)
    errors.push_back(
        {"fieldManager", "Too long: may not be more than 128 bytes", "FieldValueTooLong"});
  check_dry_run(dry_run, errors);
  const std::string& validation = out.field_validation;
  if (validation != "" && validation != "Ignore" && validation != "Strict" && validation != "Warn")
    errors.push_back(kube::field::not_supported("fieldValidation", validation,
                                                {"", "Ignore", "Strict", "Warn"}));
  if (!errors.empty()) return bad_options(kind, errors);
  return out;
}

Answer<kube::ListOptions> list_options(const Request& request) {
  kube::ListOptions out;
  out.label_selector = request.param("labelSelector");
  out.field_selector = request.param("fieldSelector");
  TRY(out.limit, request.integer("limit", 0));
  out.continue_token = request.param("continue");
  out.resource_version = request.param("resourceVersion");
  return out;
}

struct Deletion {
  kube::DeleteOptions options;
  bool dry_run = false;
};

Answer<Deletion> deletion(const Request& request) {
  static constexpr const char* kKind = "DeleteOptions";
  TRY(const Value body, read_body(request));
  if (!body.is_null())
    if (const auto why = kube::shape::misfit(kKind, body))
      return kube::api_error::undecodable({"", "v1", "", kKind, false}, *why);
  Deletion out;
  out.options.uid = body["preconditions"]["uid"].string_or("");
  out.options.resource_version = body["preconditions"]["resourceVersion"].string_or("");
  TRY(const std::int64_t grace, request.integer("gracePeriodSeconds", -1));
  out.options.grace_period_seconds =
      kube::pod::asked_grace(body["gracePeriodSeconds"].int_or(grace));
  std::string propagation = body["propagationPolicy"].string_or("");
  if (propagation.empty()) propagation = request.param("propagationPolicy");
  if (propagation.empty())
    propagation = body["orphanDependents"].bool_or(false) ? "Orphan" : "Background";
  std::vector<kube::FieldError> errors;
  if (propagation != "Background" && propagation != "Foreground" && propagation != "Orphan")
    errors.push_back(kube::field::not_supported("propagationPolicy", propagation,
                                                {"Background", "Foreground", "Orphan"}));
  out.options.propagation = propagation;
  for (const Value& dry_run : {all_of(request, "dryRun"), body["dryRun"]}) {
    check_dry_run(dry_run, errors);
    out.dry_run = out.dry_run || dry_run.size() > 0;
  }
  if (!errors.empty()) return bad_options(kKind, errors);
  return out;
}

kube::ApiError not_allowed() {
  return kube::api_error::method_not_allowed(
      "the server does not allow this method on the requested resource");
}

// What a kubelet would carry between a client and a container.
bool is_stream(const std::string& subresource) {
  return subresource == "exec" || subresource == "attach" || subresource == "portforward" ||
         subresource == "proxy";
}

kube::ApiError not_offered(const std::string& subresource) {
  return {501,
          "NotImplemented",
          "pods/" + subresource +
              " is not offered by this API server; use kubectl logs to see what it prints",
          {}};
}

std::vector<Column> columns_for(const kube::ResourceInfo& info, bool scale) {
  return scale ? scale_columns() : columns_of(info);
}

Value list_meta(const kube::Listing& listing) {
  Value meta = Value::object({{"resourceVersion", listing.resource_version}});
  if (!listing.continue_token.empty()) meta.set("continue", listing.continue_token);
  if (listing.remaining >= 0) meta.set("remainingItemCount", listing.remaining);
  return meta;
}

Reply json_reply(int status, const Value& body) {
  Reply out;
  out.response = json_response(status, body);
  return out;
}

std::string quoted_warning(const std::string& text) {
  std::string out = "299 - \"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

Reply Router::one(const Request& request, const kube::ResourceInfo& info, int status,
                  const Value& object, bool scale) const {
  if (wants_table(request)) {
    const TableMaker table(columns_for(info, scale), request.param("includeObject"));
    const Value meta = Value::object({{"resourceVersion", object["metadata"]["resourceVersion"]}});
    return json_reply(status, table.make({object}, meta, server_.clock().wall()));
  }
  if (wants_metadata(request)) return json_reply(status, partial(object));
  return json_reply(status, object);
}

Reply Router::written(const Request& request, const Place& place, const kube::Written& written,
                      int status) const {
  Reply out = one(request, *place.info, status, written.object, place.subresource == "scale");
  for (const std::string& warning : written.warnings)
    out.response.headers.emplace_back("Warning", quoted_warning(warning));
  return out;
}

Answer<Reply> Router::resource(const Request& request) {
  TRY(const Place place, place_of(request));
  if (place.info->storage_id == "pods" && is_stream(place.subresource))
    return not_offered(place.subresource);
  const std::string& method = request.method;
  if (method == "GET") return place.name.empty() ? list(request, place) : read(request, place);
  if (method == "POST" && (place.name.empty() || !place.subresource.empty()))
    return create(request, place);
  if (method == "PUT" && !place.name.empty()) return replace(request, place);
  if (method == "PATCH" && !place.name.empty()) return patch(request, place);
  if (method == "DELETE" && place.subresource.empty())
    return place.name.empty() ? remove_collection(request, place) : remove(request, place);
  return not_allowed();
}

Answer<Reply> Router::read(const Request& request, const Place& place) {
  if (place.subresource == "log" && place.info->storage_id == "pods") return log(request, place);
  if (request.flag("watch") && place.subresource.empty()) return watch(request, place);
  TRY(const Value object, server_.get(place.info->type, {place.ns, place.name}, place.subresource));
  return one(request, *place.info, 200, object, place.subresource == "scale");
}

Answer<Reply> Router::list(const Request& request, const Place& place) {
  if (request.flag("watch")) return watch(request, place);
  TRY(const kube::ListOptions options, list_options(request));
  TRY(const kube::Listing found,
      server_.list(place.info->type, place.ns, options, request.param("resourceVersionMatch")));
  if (wants_table(request)) {
    const TableMaker table(columns_of(*place.info), request.param("includeObject"));
    return json_reply(200, table.make(found.items, list_meta(found), server_.clock().wall()));
  }
  const bool slim = wants_metadata(request);
  Value items = Value::array();
  for (const Value& item : found.items) items.push_back(slim ? partial(item) : item);
  return json_reply(
      200, Value::object({{"kind", slim ? "PartialObjectMetadataList" : place.info->list_kind},
                          {"apiVersion", slim ? "meta.k8s.io/v1" : place.info->type.api_version()},
                          {"metadata", list_meta(found)},
                          {"items", std::move(items)}}));
}

Answer<Reply> Router::watch(const Request& request, const Place& place) {
  TRY(const std::int64_t seconds, request.integer("timeoutSeconds", 0));
  kube::WatchRequest wanted;
  wanted.ns = place.ns;
  wanted.label_selector = request.param("labelSelector");
  wanted.field_selector = request.param("fieldSelector");
  if (!place.name.empty()) wanted.field_selector = "metadata.name=" + place.name;
  wanted.resource_version = request.param("resourceVersion");
  wanted.bookmarks = request.flag("allowWatchBookmarks");
  wanted.send_initial_events = request.flag("sendInitialEvents");
  wanted.match = request.param("resourceVersionMatch");
  TRY(std::unique_ptr<kube::Watcher> watcher, server_.watch(place.info->type, wanted));
  WatchReply out;
  out.watcher = std::move(watcher);
  out.info = place.info;
  out.as_table = wants_table(request);
  out.metadata_only = wants_metadata(request);
  out.include_object = request.param("includeObject");
  out.length = std::chrono::seconds(seconds);
  if (out.length.count() <= 0) out.length = kWatchDefault;
  out.length = std::min(out.length, kWatchMax);
  Reply reply;
  reply.watch = std::move(out);
  return reply;
}

Answer<Reply> Router::create(const Request& request, const Place& place) {
  if (place.name.empty() && place.info->type.namespaced && place.ns.empty()) return not_allowed();
  TRY(Value body, read_body(request));
  if (const auto why = field_written_twice(request))
    return kube::api_error::undecodable(place.info->type, *why);
  TRY(const kube::WriteOptions options, write_options(request, place.subresource, "CreateOptions"));
  if (!place.name.empty()) {
    TRY(body, kube::with_name(std::move(body), place.name));
  }
  TRY(const kube::Written done, server_.create(place.info->type, place.ns, body, options));
  return written(request, place, done, 201);
}

Answer<Reply> Router::replace(const Request& request, const Place& place) {
  TRY(const Value body, read_body(request));
  if (const auto why = field_written_twice(request))
    return kube::api_error::undecodable(place.info->type, *why);
  TRY(const kube::WriteOptions options, write_options(request, place.subresource, "UpdateOptions"));
  TRY(const kube::Written done,
      server_.update(place.info->type, {place.ns, place.name}, body, options));
  return written(request, place, done, done.created ? 201 : 200);
}

Answer<Reply> Router::patch(const Request& request, const Place& place) {
  TRY(const kube::PatchType type, patch_type(request, place.info->custom));
  TRY(const Value body, read_body(request));
  if (const auto why = field_written_twice(request))
    return kube::api_error::invalid({}, "",
                                    {kube::field::invalid("patch", json::dump(body), *why)});
  TRY(const kube::WriteOptions options,
      write_options(request, place.subresource, "PatchOptions", type == kube::PatchType::kApply));
  TRY(const kube::Written done,
      server_.patch(place.info->type, {place.ns, place.name}, type, body, options));
  return written(request, place, done, done.created ? 201 : 200);
}

Answer<Reply> Router::remove(const Request& request, const Place& place) {
  TRY(const Deletion how, deletion(request));
  TRY(const kube::Removal removal,
      server_.remove(place.info->type, {place.ns, place.name}, how.options, how.dry_run));
  if (!removal.gone || place.info->returns_deleted)
    return one(request, *place.info, 200, removal.object, false);
  Value details = Value::object({{"name", place.name}});
  if (!place.info->type.group.empty()) details.set("group", place.info->type.group);
  details.set("kind", place.info->type.plural).set("uid", kube::uid_of(removal.object));
  return json_reply(200, Value::object({{"kind", "Status"},
                                        {"apiVersion", "v1"},
                                        {"metadata", Value::object()},
                                        {"status", "Success"},
                                        {"details", std::move(details)}}));
}

Answer<Reply> Router::remove_collection(const Request& request, const Place& place) {
  if (!place.info->deletes_collection || (place.info->type.namespaced && place.ns.empty()))
    return not_allowed();
  TRY(const Deletion how, deletion(request));
  TRY(const kube::ListOptions which, list_options(request));
  TRY(const std::vector<Value> gone,
      server_.remove_collection(place.info->type, place.ns, which, how.options, how.dry_run));
  Value items = Value::array();
  for (const Value& object : gone) items.push_back(object);
  return json_reply(
      200, Value::object(
               {{"kind", place.info->list_kind},
                {"apiVersion", place.info->type.api_version()},
                {"metadata",
                 Value::object({{"resourceVersion", std::to_string(server_.resource_version())}})},
                {"items", std::move(items)}}));
}

}  // namespace rubato::apiserver
