// A TCP connection that says what it is told, from an address of loopback of its own.
#pragma once

#include "common/check.h"
#include "common/net/channel.h"

#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::net {

class RawClient {
 public:
  explicit RawClient(const Endpoint& to, const char* from = "127.0.0.1")
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &own.sin_addr);
    CHECK_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(to.port);
    ::inet_pton(AF_INET, to.host.c_str(), &address.sin_addr);
    CHECK_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  int fd() const { return fd_; }
  void send(const std::string& text) { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Reads until the text ends with `mark`, or to the end of the stream.
  std::string read_until(const std::string& mark) {
    std::string text;
    char c = 0;
    while (!(text.ends_with(mark) && !mark.empty()) && ::recv(fd_, &c, 1, 0) == 1) text += c;
    return text;
  }

 private:
  int fd_;
};

}  // namespace rubato::net
