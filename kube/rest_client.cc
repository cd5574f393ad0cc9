#include "kube/rest_client.h"

#include "common/log.h"
#include "kube/errors.h"
#include "kube/rest_transport.h"

#include <algorithm>

namespace rubato::kube {
namespace {

constexpr std::size_t kWarningsMax = 256;
const std::vector<double> kSeconds{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60};

json::Limits body_limits() {
  json::Limits limits;
  limits.bytes = kResponseBytesMax;
  return limits;
}

// An answer that is no JSON is not the API server's (a proxy, a cut that went unseen): no fault of
// what was asked, so not kInvalid, which nobody would try again.
Result<json::Value> parse_answer(const std::string& body, const std::string& request) {
  auto value = json::parse(body, body_limits());
  if (value.ok()) return value;
  return Error(Code::kInternal, request + ": the answer is not JSON: " + value.error().what());
}

HttpRequest with_body(const char* method, std::string path, const json::Value& body,
                      const char* content_type = "application/json") {
  HttpRequest request;
  request.method = method;
  request.path = std::move(path);
  request.body = json::dump(body);
  request.content_type = content_type;
  return request;
}

HttpRequest read(std::string path) {
  HttpRequest request;
  request.path = std::move(path);
  return request;
}

// A server that asks to wait has refused the request; 5xx may come after the work was done.
bool may_repeat(const HttpRequest& request, const HttpResponse& response) {
  if (response.retry_after.empty()) return false;
  return response.code == 429 || (response.code >= 500 && request.method == "GET");
}

Result<std::string> path_of_one(const ResourceType& type, const Key& key,
                                const std::string& subresource = "") {
  TRY_OK(check_key(key));
  return object_path(type, key, subresource);
}

bool has_test(const json::Value& operations) {
  return std::any_of(operations.items().begin(), operations.items().end(),
                     [](const auto& item) { return item["op"].string_view_or("") == "test"; });
}

}  // namespace

Result<std::unique_ptr<RestClient>> RestClient::make(const RestConfig& config, Executor& executor,
                                                     Metrics& metrics, const RestOptions& options) {
  RestTarget target;
  TRY(target.url, parse_server_url(config.server));
  target.server_name = config.tls_server_name.empty() ? target.url.host : config.tls_server_name;
  target.verify = !config.insecure_skip_tls_verify;
  target.credentials = std::make_shared<Credentials>(executor.clock(), config.credentials);
  target.headers = config.headers;
  target.headers.emplace_back("User-Agent", options.user_agent);
  return std::unique_ptr<RestClient>(new RestClient(std::move(target), executor, metrics, options));
}

RestClient::RestClient(RestTarget target, Executor& executor, Metrics& metrics,
                       const RestOptions& options)
    : target_(std::make_unique<RestTarget>(std::move(target))),
      executor_(executor),
      metrics_(metrics),
      options_(options),
      host_(authority_of(target_->url)),
      unary_(make_cpprest_transport(*target_, executor)),
      rng_(random_seed()) {}

RestClient::~RestClient() = default;

Result<HttpResponse> RestClient::attempt(const HttpRequest& request, MonoTime deadline) {
  const MonoTime start = executor_.now();
  auto response = unary_->send(request, deadline);
  const double took = std::chrono::duration<double>(executor_.now() - start).count();
  metrics_
      .histogram("rest_client_request_duration_seconds", "Length of requests to the API server.",
                 {{"verb", request.method}, {"host", host_}}, kSeconds)
      .observe(took);
  metrics_
      .counter("rest_client_requests_total", "Requests to the API server.",
               {{"code", response.ok() ? std::to_string(response->code) : "<error>"},
                {"method", request.method},
                {"host", host_}})
      .add();
  return response;
}

Result<std::string> RestClient::send(HttpRequest request) {
  const bool writes = request.method != "GET" && options_.limits.write_timeout.count() > 0;
  Duration limit = writes ? options_.limits.write_timeout : Duration(options_.limits.timeout);
  if (request.is_small) limit = std::min<Duration>(limit, kObjectReadLimit);
  const MonoTime deadline = executor_.now() + limit;
  bool fresh_credential = false;
  bool reconnected = false;
  for (int tries = 1;; ++tries) {
    TRY(const Credential credential, target_->credentials->get());
    request.authorization = credential.authorization;
    // Whoever gave it this much time may not be allowed to write any more.
    if (executor_.now() >= deadline)
      return Error(Code::kTimeout, "the credentials took too long; not sent")
          .in(request.method + " " + request.path);
    auto response = attempt(request, deadline);
    if (!response.ok()) {
      // A pooled connection that the server has closed meanwhile: reads may try once more.
      const bool again = response.error().code() == Code::kUnavailable && !reconnected &&
                         request.method == "GET" && executor_.now() < deadline;
      if (!again) return response.error();
      reconnected = true;
      continue;
    }
    note_warning(response->warning);
    if (response->code >= 200 && response->code < 300) return std::move(response->body);
    const Error error = error_from_body(response->code, response->body, response->retry_after);
    if (response->code == 401 && !fresh_credential) {
      fresh_credential = true;
      target_->credentials->drop();
      continue;
    }
    const MonoTime later = executor_.now() + std::max<Duration>(error.retry_after(), 100ms);
    if (!may_repeat(request, response.value()) || tries >= kRequestTriesMax || later >= deadline)
      return error.in(request.method + " " + request.path);
    LOG_INFO("rest", "{} {}: {} (flow schema {}), again in {} ms", request.method, request.path,
             response->code, response->flow_schema, error.retry_after().count());
    metrics_
        .counter(
            "rest_client_request_retries_total", "Requests repeated as the server asked.",
            {{"code", std::to_string(response->code)}, {"verb", request.method}, {"host", host_}})
        .add();
    executor_.sleep_until(later, {});
  }
}

void RestClient::note_warning(const std::string& warning) {
  if (warning.empty()) return;
  std::lock_guard lock(mutex_);
  if (warnings_.size() >= kWarningsMax || !warnings_.insert(warning).second) return;
  LOG_WARNING("rest", "the API server warns: {}", warning);
}

Result<json::Value> RestClient::send_json(HttpRequest request) {
  const std::string what = request.method + " " + request.path;
  TRY(const std::string body, send(std::move(request)));
  return parse_answer(body, what);
}

Result<std::string> RestClient::get_raw(const std::string& path, const std::string& accept) {
  HttpRequest request = read(path);
  request.accept = accept;
  return send(std::move(request));
}

Result<WallTime> RestClient::server_time() {
  HttpRequest request = read("/version");
  TRY(const Credential credential, target_->credentials->get());
  request.authorization = credential.authorization;
  TRY(const HttpResponse response, attempt(request, executor_.now() + options_.limits.timeout));
  std::tm parts{};
  if (::strptime(response.date.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts) == nullptr)
    return Error(Code::kNotFound, "the API server's answers carry no date");
  return nearest_wall_time(std::chrono::sys_seconds(std::chrono::seconds(::timegm(&parts))));
}

Result<std::unique_ptr<LineStream>> RestClient::stream(const std::string& path,
                                                       const std::string& accept) {
  HttpRequest request = read(path);
  request.accept = accept;
  TRY(const Credential credential, target_->credentials->get());
  request.authorization = credential.authorization;
  return open_asio_lines(*target_, request, executor_.clock(),
                         executor_.now() + options_.limits.timeout);
}

Result<json::Value> RestClient::get(const ResourceType& type, const Key& key,
                                    const std::string& subresource) {
  TRY(std::string path, path_of_one(type, key, subresource));
  HttpRequest request = read(std::move(path));
  request.is_small = true;
  return send_json(std::move(request));
}

Result<ObjectList> RestClient::list(const ResourceType& type, const std::string& ns,
                                    const ListOptions& options) {
  const std::string path = collection_path(type, ns) + encode_query(list_query(options));
  TRY(std::string body, send(read(path)));
  if (options.raw) return split_list(body);
  TRY(const json::Value value, parse_answer(body, "GET " + path));
  ObjectList list;
  list.items = value["items"].items();
  list.resource_version = resource_version_of(value);
  list.continue_token = value["metadata"]["continue"].string_or("");
  // Items of built-in types come without these two; every other answer has them.
  for (auto& item : list.items) {
    if (!item.has("kind")) item.set("kind", type.kind).set("apiVersion", type.api_version());
  }
  return list;
}

Result<std::unique_ptr<Watch>> RestClient::watch(const ResourceType& type, const std::string& ns,
                                                 const WatchOptions& options) {
  std::chrono::seconds timeout = options.timeout;
  if (timeout.count() == 0) {
    const auto third = options_.watch_length.count() / 3;
    std::lock_guard lock(mutex_);
    const auto extra = rng_.below(static_cast<std::uint64_t>(2 * third) + 1);
    timeout = std::max(1s, std::chrono::seconds(2 * third) + std::chrono::seconds(extra));
  }
  HttpRequest request =
      read(collection_path(type, ns) + encode_query(watch_query(options, timeout)));
  const MonoTime deadline =
      executor_.now() + std::min<Duration>(options_.limits.timeout, kWatchOpenLimit);
  const StreamBounds bounds{kWatchSilenceMax, timeout + options_.watch_overdue,
                            options_.watch_line_limit};
  for (bool again = true;; again = false) {
    TRY(const Credential credential, target_->credentials->get());
    request.authorization = credential.authorization;
    auto watch = open_asio_watch(*target_, request, executor_.clock(), deadline, bounds);
    if (watch.ok() || !again || watch.error().reason() != "Unauthorized") return watch;
    target_->credentials->drop();
  }
}

Result<json::Value> RestClient::create(const ResourceType& type, const std::string& ns,
                                       const json::Value& object, const WriteOptions& options) {
  const std::string query = encode_query(write_query(options, PatchType::kMerge, false));
  const std::string where = ns.empty() ? namespace_of(object) : ns;
  std::string path = collection_path(type, where);
  if (!options.subresource.empty()) {
    TRY(path, path_of_one(type, {where, name_of(object)}, options.subresource));
  }
  return send_json(with_body("POST", path + query, object));
}

Result<json::Value> RestClient::update(const ResourceType& type, const json::Value& object,
                                       const WriteOptions& options) {
  const std::string query = encode_query(write_query(options, PatchType::kMerge, false));
  TRY(const std::string path, path_of_one(type, key_of(object), options.subresource));
  return send_json(with_body("PUT", path + query, object));
}

Result<json::Value> RestClient::patch(const ResourceType& type, const Key& key, PatchType kind,
                                      const json::Value& body, const WriteOptions& options) {
  const std::string query = encode_query(write_query(options, kind, true));
  TRY(const std::string path, path_of_one(type, key, options.subresource));
  auto patched = send_json(with_body("PATCH", path + query, body, content_type(kind)));
  if (!patched.ok() && kind == PatchType::kJson && has_test(body) &&
      is_unexplained_patch_failure(patched.error()))
    return explain_patch_failure(type, key, body, patched.error());
  return patched;
}

// The server does not say which operation failed. Applying the patch to what it has now tells: a
// `test` that does not hold, a fault of ours, or an object that has moved on since.
Error RestClient::explain_patch_failure(const ResourceType& type, const Key& key,
                                        const json::Value& body, Error error) {
  auto object = get(type, key, "");
  if (!object.ok()) return object.error();
  json::Value trial = std::move(object).value();
  const Status applied = json_patch(trial, body);
  if (!applied.ok() && applied.error().code() != Code::kConflict) return error;
  return Error(Code::kConflict, applied.ok() ? error.what() : applied.error().what())
      .set_reason("TestFailed");
}

Status RestClient::remove(const ResourceType& type, const Key& key, const DeleteOptions& options) {
  TRY(const std::string path, path_of_one(type, key));
  TRY_OK(send(with_body("DELETE", path, delete_body(options))));
  return ok();
}

Result<std::unique_ptr<RestClient>> connect(const KubeconfigOptions& where, Executor& executor,
                                            Metrics& metrics, const RestOptions& options) {
  TRY(const RestConfig config, default_config(where));
  return RestClient::make(config, executor, metrics, options);
}

}  // namespace rubato::kube
