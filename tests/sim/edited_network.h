// EditedNetwork: a Network whose frames are edited as they are sent: each leaves as none, one or
// several. So frames arrive twice, or say what another build would say (other_build.h).
#pragma once

#include "common/net/channel.h"
#include "common/rng.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace rubato::sim {

using FrameEdit = std::function<std::vector<std::string>(std::string frame)>;

// No TLS stream doubles frames; the protocol holds all the same (docs/protocol.md), since what is
// said again after a reconnect looks just like it.
struct Doubling {
  double chance = 0;
  Rng rng{1};

  std::vector<std::string> operator()(std::string frame) {
    const bool twice = chance > 0 && rng.chance(chance);
    std::vector<std::string> frames;
    if (twice) frames.push_back(frame);
    frames.push_back(std::move(frame));
    return frames;
  }
};

class EditedChannel : public net::Channel {
 public:
  EditedChannel(std::unique_ptr<net::Channel> inner, FrameEdit edit)
      : inner_(std::move(inner)), edit_(std::move(edit)) {}
  Status send(std::string frame, MonoTime deadline) override {
    for (std::string& edited : edit_(std::move(frame)))
      TRY_OK(inner_->send(std::move(edited), deadline));
    return ok();
  }
  Result<std::string> receive(MonoTime deadline) override { return inner_->receive(deadline); }
  void on_news(std::function<void()> news) override { inner_->on_news(std::move(news)); }
  void close() override { inner_->close(); }
  bool closed() const override { return inner_->closed(); }
  net::Endpoint peer() const override { return inner_->peer(); }
  std::string peer_name() const override { return inner_->peer_name(); }

 private:
  const std::unique_ptr<net::Channel> inner_;
  const FrameEdit edit_;
};

class EditedListener : public net::Listener {
 public:
  EditedListener(std::unique_ptr<net::Listener> inner, FrameEdit edit)
      : inner_(std::move(inner)), edit_(std::move(edit)) {}
  Result<std::unique_ptr<net::Channel>> accept(MonoTime deadline) override {
    TRY(auto channel, inner_->accept(deadline));
    return std::unique_ptr<net::Channel>(
        std::make_unique<EditedChannel>(std::move(channel), edit_));
  }
  net::Endpoint local() const override { return inner_->local(); }
  Status renew(const net::TlsConfig& tls) override { return inner_->renew(tls); }
  void close() override { inner_->close(); }

 private:
  const std::unique_ptr<net::Listener> inner_;
  const FrameEdit edit_;
};

class EditedNetwork : public net::Network {
 public:
  EditedNetwork(std::unique_ptr<net::Network> inner, FrameEdit edit)
      : inner_(std::move(inner)), edit_(std::move(edit)) {}
  Result<std::unique_ptr<net::Listener>> listen(const net::Endpoint& at, const net::TlsConfig& tls,
                                                const net::ListenLimits& limits) override {
    TRY(auto listener, inner_->listen(at, tls, limits));
    return std::unique_ptr<net::Listener>(
        std::make_unique<EditedListener>(std::move(listener), edit_));
  }
  Result<std::unique_ptr<net::Channel>> dial(const net::Endpoint& to, const net::TlsConfig& tls,
                                             MonoTime deadline) override {
    TRY(auto channel, inner_->dial(to, tls, deadline));
    return std::unique_ptr<net::Channel>(
        std::make_unique<EditedChannel>(std::move(channel), edit_));
  }

 private:
  const std::unique_ptr<net::Network> inner_;
  const FrameEdit edit_;
};

}  // namespace rubato::sim
