// Unary requests by cpprestsdk. No exception and no pplx type leaves this file.
#include "common/log.h"
#include "kube/rest_transport.h"
#include "kube/tls_client.h"

#include <mutex>

#include <cpprest/http_client.h>
#include <openssl/ssl.h>
#include <pplx/threadpool.h>

namespace rubato::kube {
namespace {

using web::http::client::http_client;
using web::http::client::http_client_config;

// The library starts 40 threads unless told before its first use. They are joined at the process's
// end, in the reverse order of first uses; OpenSSL goes first, so that none of them is still
// closing a connection when OpenSSL has taken itself apart.
void start_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    OPENSSL_init_ssl(0, nullptr);
    try {
      crossplat::threadpool::initialize_with_threads(kCppRestThreads);
    } catch (const std::exception& error) {
      LOG_WARNING("rest", "cpprestsdk was started before with its own number of threads: {}",
                  error.what());
    }
  });
}

// One request in flight: shared by the waiting task and cpprestsdk's continuations.
struct Flight {
  explicit Flight(Executor& executor) : changed(executor.make_condition()) {}
  std::mutex mutex;
  std::unique_ptr<Condition> changed;
  bool done = false;
  HttpResponse response;
  std::optional<Error> error;

  void finish(std::optional<Error> failure) {
    std::lock_guard lock(mutex);
    error = std::move(failure);
    done = true;
    changed->notify_all();
  }
};

Error to_error(const web::http::http_exception& failure, TlsRefusal& refusal) {
  const bool timeout = failure.error_code() == std::errc::timed_out;
  return Error(timeout ? Code::kTimeout : Code::kUnavailable, failure.what() + refusal.take());
}

// cpprestsdk gives the host to the resolver as it stands in the URI, and the resolver knows no
// brackets. Its URIs can do without them where the port is said.
web::uri base_uri(const ServerUrl& url) {
  const bool is_v6 = url.host.find(':') != std::string::npos;
  return (url.tls ? "https://" : "http://") +
         (is_v6 ? url.host + ":" + std::to_string(url.port) : authority_of(url));
}

std::string header(const web::http::http_headers& headers, const char* name) {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

class CppRestTransport : public UnaryTransport {
 public:
  CppRestTransport(RestTarget target, Executor& executor)
      : target_(std::move(target)), executor_(executor), refusal_(std::make_shared<TlsRefusal>()) {
    start_library();  // before the first client exists
  }

  Result<HttpResponse> send(const HttpRequest& request, MonoTime deadline) override {
    auto flight = std::make_shared<Flight>(executor_);
    pplx::cancellation_token_source cancel;
    try {
      start(request, flight, cancel.get_token());
    } catch (const std::exception& error) {  // a malformed header or URI
      return Error(Code::kInvalid, std::string("request: ") + error.what());
    }
    std::unique_lock lock(flight->mutex);
    if (!flight->changed->wait_until(lock, deadline, [&] { return flight->done; })) {
      lock.unlock();
      cancel.cancel();  // closes the connection; the flight lives on until its end
      return Error(Code::kTimeout, request.method + " " + request.path + " took too long");
    }
    if (flight->error) return flight->error->in(request.method + " " + request.path);
    return std::move(flight->response);
  }

 private:
  // A server knows a connection by the certificate that it was opened with: when that was replaced,
  // by a client whose pool is empty.
  std::shared_ptr<http_client> current_client() {
    const auto credential = target_.credentials->get();
    const std::lock_guard lock(mutex_);
    if (client_ && (!credential.ok() || credential->certificate == certificate_)) return client_;
    if (credential.ok()) certificate_ = credential->certificate;
    client_ = std::make_shared<http_client>(base_uri(target_.url), config());
    return client_;
  }

  http_client_config config() {
    http_client_config config;
    // Idle time of a connection in a request; the deadline of send() is the bound that counts.
    config.set_timeout(std::chrono::seconds(60));
    config.set_validate_certificates(target_.verify);
    config.set_tlsext_sni_enabled(!is_ip_address(target_.server_name));
    const RestTarget target = target_;
    const auto refusal = refusal_;
    config.set_ssl_context_callback([target, refusal](boost::asio::ssl::context& context) {
      const auto credential = target.credentials->get();
      Status status = credential.ok() ? configure_tls(context.native_handle(), credential.value(),
                                                      target.verify)
                                      : Status(credential.error());
      // cpprestsdk looks for the name too, but cannot say what is wrong with it.
      if (status.ok() && target.verify)
        status = expect_server(context.native_handle(), target.server_name);
      note_refusals(context.native_handle(), refusal);
      if (status.ok()) return;
      LOG_ERROR("rest", "TLS: {}", status.error().to_string());
      SSL_CTX_set_cert_store(context.native_handle(), X509_STORE_new());  // trusts nobody: fails
    });
    return config;
  }

  void start(const HttpRequest& request, const std::shared_ptr<Flight>& flight,
             const pplx::cancellation_token& cancel) {
    web::http::http_request message(request.method);
    message.set_request_uri(target_.url.prefix + request.path);
    auto& headers = message.headers();
    headers.add("Accept", request.accept);
    // cpprestsdk finds the name for SNI and verification here.
    if (target_.server_name != target_.url.host) headers.add("Host", target_.server_name);
    for (const auto& [name, value] : target_.headers) headers.add(name, value);
    if (!request.authorization.empty()) headers.add("Authorization", request.authorization);
    if (!request.body.empty()) message.set_body(request.body, request.content_type);

    const auto client = current_client();
    client->request(message, cancel)
        .then([flight](const web::http::http_response& answer) {
          flight->response.code = answer.status_code();
          flight->response.retry_after = header(answer.headers(), "Retry-After");
          flight->response.warning = header(answer.headers(), "Warning");
          flight->response.date = header(answer.headers(), "Date");
          flight->response.flow_schema = header(answer.headers(), "X-Kubernetes-PF-FlowSchema-UID");
          return answer.extract_utf8string(true);
        })
        .then([flight, client, refusal = refusal_](const pplx::task<std::string>& body) {
          try {
            flight->response.body = body.get();
            flight->finish(std::nullopt);
          } catch (const web::http::http_exception& failure) {
            flight->finish(to_error(failure, *refusal));
          } catch (const std::exception& failure) {
            flight->finish(Error(Code::kUnavailable, failure.what()));
          }
        });
  }

  RestTarget target_;
  Executor& executor_;
  std::shared_ptr<TlsRefusal> refusal_;
  std::mutex mutex_;
  std::string certificate_;  // of the client that `client_` shows
  std::shared_ptr<http_client> client_;
};

}  // namespace

std::unique_ptr<UnaryTransport> make_cpprest_transport(RestTarget target, Executor& executor) {
  return std::make_unique<CppRestTransport>(std::move(target), executor);
}

}  // namespace rubato::kube
