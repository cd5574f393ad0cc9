// Reading: get, list, paging. Writing: memory_write.cc; watching: watcher.cc.
#include "apiserver/memory/memory_server.h"

#include "apiserver/memory/event_form.h"
#include "apiserver/memory/field_selector.h"
#include "apiserver/memory/scale.h"

#include <algorithm>

namespace rubato::kube {
namespace {

using json::Value;

constexpr std::size_t kOpenPages = 64;  // lists being paged; beyond, the oldest gets 410
constexpr Duration kEventSweep = 60s;

const char* const kContinueExpired =
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list.";

std::optional<std::uint64_t> parse_version(const std::string& text) {
  std::uint64_t out = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || out > (1ULL << 60U)) return std::nullopt;
    out = out * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return out;
}

// An Event's lifetime begins anew with each update. The last one is read from the times that the
// Event's writers set; a time in the future does not count.
std::optional<WallTime> last_written(const Value& event, WallTime now) {
  std::optional<WallTime> last;
  for (const Value* told : {&event["metadata"]["creationTimestamp"], &event["lastTimestamp"],
                            &event["series"]["lastObservedTime"]}) {
    const auto at = parse_rfc3339(told->string_view_or(""));
    if (at.ok() && *at <= now && (!last || *at > *last)) last = *at;
  }
  return last;
}

}  // namespace

MemoryServer::MemoryServer(Clock& clock, ServerOptions options)
    : clock_(clock),
      options_(options),
      rng_(options.seed),
      store_(options.history_events),
      rules_(registry_, store_, clock, rng_),
      lifecycle_(registry_, store_, rules_, clock),
      events_checked_(clock.now()) {
  const std::lock_guard lock(mutex_);
  bootstrap();
}

void MemoryServer::bootstrap() {
  const auto make = [&](const ResourceType& type, const Value& object) {
    const InfoPtr info = registry_.find(type);
    if (store_.find({info->storage_id, name_of(object)}) != nullptr) return;
    CHECK(create_locked(*info, "", object, {}, false).ok());
  };
  for (const char* name : {"default", "kube-node-lease", "kube-public", "kube-system"})
    make(types::kNamespace, Value::object({{"metadata", Value::object({{"name", name}})}}));
  const std::pair<const char*, int> classes[] = {{"system-cluster-critical", 2000000000},
                                                 {"system-node-critical", 2000001000}};
  for (const auto& [name, value] : classes)
    make(types::kPriorityClass,
         Value::object({{"metadata", Value::object({{"name", name}})}, {"value", value}}));
}

InfoPtr MemoryServer::resource(const ResourceType& type) const {
  const std::lock_guard lock(mutex_);
  return registry_.find(type);
}

std::vector<InfoPtr> MemoryServer::resources() const {
  const std::lock_guard lock(mutex_);
  return registry_.all();
}

std::uint64_t MemoryServer::resource_version() const {
  const std::lock_guard lock(mutex_);
  return store_.version();
}

void MemoryServer::set_validator(const std::string& storage_id, Validator validator) {
  const std::lock_guard lock(mutex_);
  rules_.set_validator(storage_id, std::move(validator));
}

void MemoryServer::load(const std::function<void(ObjectStore&)>& fill, ObjectStore::Commit commit) {
  const std::lock_guard lock(mutex_);
  store_ = ObjectStore(options_.history_events);
  fill(store_);
  rng_ = Rng(options_.seed ^ mix64(store_.version()));  // other uids than in the former life
  for (const auto& [key, crd] : store_.objects("customresourcedefinitions.apiextensions.k8s.io"))
    registry_.install(crd);
  store_.on_commit(std::move(commit));
  bootstrap();
}

void MemoryServer::follow(ObjectStore::Commit commit) {
  const std::lock_guard lock(mutex_);
  store_.on_commit(std::move(commit));
}

void MemoryServer::visit(const std::function<void(const ObjectStore&)>& reader) const {
  const std::lock_guard lock(mutex_);
  reader(store_);
}

void MemoryServer::go_back_to(const ObjectStore::Backup& backup) {
  const std::lock_guard lock(mutex_);
  store_.go_back_to(backup);
}

StoreId MemoryServer::id_of(const ResourceInfo& info, const Key& key) {
  return {info.storage_id, store_key(info.type.namespaced ? key.ns : "", key.name)};
}

Answer<InfoPtr> MemoryServer::known(const ResourceType& type) const {
  InfoPtr info = registry_.find(type);
  if (info == nullptr) return api_error::no_such_resource();
  return info;
}

Value MemoryServer::present(const ResourceInfo& info, const Value& stored) const {
  if (stored["apiVersion"].string_view_or("") == info.type.api_version()) return stored;
  if (info.storage_id == "events") return event_form::from_core(stored);
  Value out = stored;
  out.set("apiVersion", info.type.api_version());
  return out;
}

Value MemoryServer::stored_form(const ResourceInfo& info, Value object) const {
  if (info.storage_id == "events") return event_form::to_core(object);
  return object;
}

Answer<Value> MemoryServer::get(const ResourceType& type, const Key& key,
                                const std::string& subresource) const {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  const Value* found = store_.find(id_of(*info, key));
  if (found == nullptr) return api_error::not_found(info->type, key.name);
  if (subresource.empty()) return present(*info, *found);
  if (subresource == "status" && info->has_status) return present(*info, *found);
  if (subresource == "scale" && has_scale(*info)) return scale_of(*info, *found);
  return api_error::no_such_resource();
}

Answer<Listing> MemoryServer::list(const ResourceType& type, const std::string& ns,
                                   const ListOptions& options, const std::string& match) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  TRY(const Selector labels, parse_label_selector(options.label_selector));
  TRY(const Selector fields, parse_field_selector(*info, options.field_selector));
  const std::string prefix = ns.empty() || !info->type.namespaced ? "" : ns + "/";
  const std::string place = info->storage_id + "/" + prefix;
  if (!options.continue_token.empty()) return next_page(*info, place, options);
  const auto wanted = parse_version(options.resource_version);
  if (!wanted)
    return api_error::bad_request("invalid resource version \"" + options.resource_version + "\"");
  if (*wanted > store_.version()) return api_error::too_large_version(*wanted, store_.version());
  if (match == "Exact" && *wanted != store_.version())
    return api_error::expired("The resourceVersion for the provided list is too old.");
  std::vector<Value> found;
  const ObjectStore::Objects& objects = store_.objects(info->storage_id);
  for (auto it = objects.lower_bound(prefix); it != objects.end() && it->first.starts_with(prefix);
       ++it)
    if ((labels.empty() || labels.matches_labels(it->second)) &&
        matches_field_selector(fields, it->second))
      found.push_back(it->second);
  std::ranges::reverse(found);
  return finish_page(*info, {0, store_.version(), place, std::move(found)}, options,
                     labels.empty() && fields.empty());
}

// A page is served from what the first request saw: the token is the number of the rest of that
// list.
Answer<Listing> MemoryServer::next_page(const ResourceInfo& info, const std::string& place,
                                        const ListOptions& options) {
  if (!options.resource_version.empty() && options.resource_version != "0")
    return api_error::bad_request("specifying resource version is not allowed when using continue");
  const auto refuse = [](const char* why) {
    return api_error::bad_request(
        std::string("invalid continue token: continue key is not valid: ") + why);
  };
  const auto id = parse_version(options.continue_token);
  if (!id) return refuse("it is not a number");
  const auto page = std::ranges::find(pages_, *id, &Page::id);
  if (page == pages_.end()) return api_error::expired(kContinueExpired);
  if (page->place != place) return refuse("it is of another list");
  return finish_page(info, *page, options, false);
}

// Keeps what does not fit for the next request.
Answer<Listing> MemoryServer::finish_page(const ResourceInfo& info, Page page,
                                          const ListOptions& options, bool counted) {
  Listing out;
  out.resource_version = std::to_string(page.version);
  std::size_t take = page.rest.size();
  if (options.limit > 0) take = std::min(take, static_cast<std::size_t>(options.limit));
  for (std::size_t i = 0; i < take; ++i) {
    out.items.push_back(present(info, page.rest.back()));
    page.rest.pop_back();
  }
  if (page.rest.empty()) return out;
  if (counted) out.remaining = static_cast<std::int64_t>(page.rest.size());
  if (pages_.size() >= kOpenPages) pages_.erase(pages_.begin());
  page.id = ++next_page_;
  pages_.push_back(std::move(page));
  out.continue_token = std::to_string(next_page_);
  return out;
}

void MemoryServer::expire_events() {
  const MonoTime now = clock_.now();
  if (now - events_checked_ < kEventSweep) return;
  events_checked_ = now;
  std::vector<StoreId> old;
  for (const auto& [key, event] : store_.objects("events")) {
    const auto written = last_written(event, clock_.wall());
    if (written && clock_.wall() - *written > options_.event_lifetime)
      old.push_back({"events", key});
  }
  for (const StoreId& id : old) store_.erase(id, *store_.find(id));
}

}  // namespace rubato::kube
