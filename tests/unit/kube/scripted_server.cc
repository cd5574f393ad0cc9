#include "scripted_server.h"

#include "common/check.h"

#include <algorithm>
#include <csignal>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::kube {
namespace {

std::size_t body_length(const std::string& head) {
  const auto at = head.find("Content-Length:");
  return at == std::string::npos ? 0 : std::stoul(head.substr(at + 15));
}

class SocketConnection : public ScriptedServer::Connection {
 public:
  SocketConnection(int fd, SSL_CTX* tls) : fd_(fd) {
    if (tls == nullptr) return;
    ssl_ = SSL_new(tls);
    SSL_set_fd(ssl_, fd_);
    good_ = SSL_accept(ssl_) == 1;
  }
  ~SocketConnection() override {
    if (ssl_ != nullptr) SSL_free(ssl_);
  }
  bool good() const { return good_; }

  std::string read_request() override {
    std::string text;
    for (;;) {
      const auto end = text.find("\r\n\r\n");
      if (end != std::string::npos && text.size() >= end + 4 + body_length(text)) return text;
      char buffer[4096];
      const long count = ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof buffer)
                                         : read(fd_, buffer, sizeof buffer);
      if (count <= 0) return "";
      text.append(buffer, static_cast<std::size_t>(count));
    }
  }
  bool write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const long count = ssl_ != nullptr
                             ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                             : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  std::size_t write_now(std::string_view bytes) override {
    const auto count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  void wait_for_close() override {
    char buffer[256];
    while ((ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof buffer)
                            : read(fd_, buffer, sizeof buffer)) > 0) {
    }
  }

 private:
  int fd_;
  SSL* ssl_ = nullptr;
  bool good_ = true;
};

std::shared_ptr<void> make_context(const net::KeyPair& identity, const std::string& authority) {
  if (identity.certificate.empty()) return nullptr;
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  const auto bio = [](const std::string& text) {
    return std::unique_ptr<BIO, decltype(&BIO_free_all)>(
        BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all);
  };
  X509* certificate = PEM_read_bio_X509(bio(identity.certificate).get(), nullptr, nullptr, nullptr);
  EVP_PKEY* key =
      PEM_read_bio_PrivateKey(bio(identity.private_key).get(), nullptr, nullptr, nullptr);
  CHECK_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
  CHECK_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
  if (!authority.empty()) {
    X509* signer = PEM_read_bio_X509(bio(authority).get(), nullptr, nullptr, nullptr);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), signer);
    X509_free(signer);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

// A socket that listens on a free port of the address; -1: it cannot.
int listening(const std::string& address) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_in);
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
      inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    CHECK_EQ(inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr), 1);
    v6->sin6_family = AF_INET6;
    size = sizeof(sockaddr_in6);
  }
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&storage), size) == 0 && listen(fd, 16) == 0)
    return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

bool ScriptedServer::has_ipv6() {
  const int fd = listening("::1");
  if (fd >= 0) close(fd);
  return fd >= 0;
}

ScriptedServer::ScriptedServer(Script script, const net::KeyPair& identity,
                               const std::string& client_authority, const std::string& address)
    : script_(std::move(script)), tls_(make_context(identity, client_authority)) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that the client has closed
  listener_ = listening(address);
  CHECK_GE(listener_, 0);
  sockaddr_in6 bound{};  // the port is at the same place for both kinds
  socklen_t size = sizeof bound;
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size), 0);
  port_ = ntohs(bound.sin6_port);
  acceptor_ = std::thread([this] { accept_loop(); });
}

ScriptedServer::~ScriptedServer() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    shutdown(listener_, SHUT_RDWR);
    for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
  }
  acceptor_.join();
  for (auto& thread : threads_) thread.join();
  for (const int fd : sockets_) close(fd);
  close(listener_);
}

int ScriptedServer::connections() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(sockets_.size());
}

void ScriptedServer::accept_loop() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    std::lock_guard lock(mutex_);
    if (fd < 0 || closing_) {
      if (fd >= 0) close(fd);
      return;
    }
    sockets_.push_back(fd);
    threads_.emplace_back([this, fd] {
      {
        SocketConnection connection(fd, static_cast<SSL_CTX*>(tls_.get()));
        if (connection.good()) script_(connection);
      }
      shutdown(fd, SHUT_RDWR);
    });
  }
}

std::string http_answer(int code, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + std::to_string(code) + " X\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
std::string chunked_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
}
std::string chunk(const std::string& body) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", body.size());
  return size + body + "\r\n";
}
std::string last_chunk() { return "0\r\n\r\n"; }

}  // namespace rubato::kube

#ifdef __SANITIZE_ADDRESS__
// cpprestsdk's threads live until the process ends, and with them OpenSSL's error queue of each.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcrypto\n"; }
#endif
