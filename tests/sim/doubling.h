// DoublingNetwork: a Network on which frames now and then arrive twice. No TLS stream does that;
// the protocol holds all the same (docs/protocol.md), since what is said again after a reconnect
// looks just like it.
#pragma once

#include "common/net/channel.h"
#include "common/rng.h"

#include <memory>
#include <utility>

namespace rubato::sim {

struct Doubling {
  double chance = 0;
  Rng rng{1};
};

class DoublingChannel : public net::Channel {
 public:
  DoublingChannel(std::unique_ptr<net::Channel> inner, Doubling& doubling)
      : inner_(std::move(inner)), doubling_(doubling) {}
  Status send(std::string frame, MonoTime deadline) override {
    if (doubling_.chance > 0 && doubling_.rng.chance(doubling_.chance))
      TRY_OK(inner_->send(frame, deadline));
    return inner_->send(std::move(frame), deadline);
  }
  Result<std::string> receive(MonoTime deadline) override { return inner_->receive(deadline); }
  void close() override { inner_->close(); }
  bool closed() const override { return inner_->closed(); }
  net::Endpoint peer() const override { return inner_->peer(); }

 private:
  const std::unique_ptr<net::Channel> inner_;
  Doubling& doubling_;
};

class DoublingListener : public net::Listener {
 public:
  DoublingListener(std::unique_ptr<net::Listener> inner, Doubling& doubling)
      : inner_(std::move(inner)), doubling_(doubling) {}
  Result<std::unique_ptr<net::Channel>> accept(MonoTime deadline) override {
    TRY(auto channel, inner_->accept(deadline));
    return std::unique_ptr<net::Channel>(
        std::make_unique<DoublingChannel>(std::move(channel), doubling_));
  }
  net::Endpoint local() const override { return inner_->local(); }
  void close() override { inner_->close(); }

 private:
  const std::unique_ptr<net::Listener> inner_;
  Doubling& doubling_;
};

class DoublingNetwork : public net::Network {
 public:
  DoublingNetwork(std::unique_ptr<net::Network> inner, Doubling& doubling)
      : inner_(std::move(inner)), doubling_(doubling) {}
  Result<std::unique_ptr<net::Listener>> listen(const net::Endpoint& at,
                                                const net::TlsConfig& tls) override {
    TRY(auto listener, inner_->listen(at, tls));
    return std::unique_ptr<net::Listener>(
        std::make_unique<DoublingListener>(std::move(listener), doubling_));
  }
  Result<std::unique_ptr<net::Channel>> dial(const net::Endpoint& to, const net::TlsConfig& tls,
                                             MonoTime deadline) override {
    TRY(auto channel, inner_->dial(to, tls, deadline));
    return std::unique_ptr<net::Channel>(
        std::make_unique<DoublingChannel>(std::move(channel), doubling_));
  }

 private:
  const std::unique_ptr<net::Network> inner_;
  Doubling& doubling_;
};

}  // namespace rubato::sim
