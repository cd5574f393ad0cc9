#include "tests/sim/sim_links.h"

#include <array>
#include <utility>

namespace rubato::sim {
namespace {

using testing::SimProcess;
using testing::SimStream;
using testing::SimStreams;
using worker::Arrival;
using worker::Link;
using worker::LinkNetwork;
using worker::LinkWait;

constexpr std::size_t kWaitsMax = 64;

class SimLink : public Link {
 public:
  SimLink(SimProcess& process, std::unique_ptr<SimStream> stream)
      : process_(process), stream_(std::move(stream)) {}
  Result<std::size_t> try_read(void* to, std::size_t bytes) override {
    return stream_->try_read(to, bytes);
  }
  Result<std::size_t> try_write(const void* from, std::size_t bytes) override {
    return stream_->try_write(from, bytes);
  }
  void wait_among(std::span<LinkWait> waits, MonoTime deadline) override {
    CHECK_LE(waits.size(), kWaitsMax);
    std::array<testing::StreamWait, kWaitsMax> streams;
    for (std::size_t i = 0; i < waits.size(); ++i)
      streams[i] = {.stream = static_cast<SimLink*>(waits[i].link)->stream_.get(),
                    .progress = waits[i].progress,
                    .end = waits[i].end};
    SimStream::wait_among(std::span(streams).first(waits.size()), deadline);
    for (std::size_t i = 0; i < waits.size(); ++i) waits[i].ended = streams[i].ended;
  }
  void cut() override { stream_->cut(); }
  bool is_cut() const override { return stream_->is_cut(); }

 protected:
  MonoTime now() const override { return process_.now(); }

 private:
  SimProcess& process_;
  const std::unique_ptr<SimStream> stream_;
};

class SimArrival : public Arrival {
 public:
  explicit SimArrival(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  Result<std::unique_ptr<Link>> secure(MonoTime, std::stop_token) override {
    return std::move(link_);
  }
  std::string source() const override { return ""; }

 private:
  std::unique_ptr<Link> link_;
};

class SimLinkNetwork : public LinkNetwork {
 public:
  SimLinkNetwork(SimProcess& process, std::unique_ptr<SimStreams> streams)
      : process_(process), streams_(std::move(streams)) {}
  std::uint16_t port() const override { return streams_->port(); }
  Result<std::unique_ptr<Arrival>> accept(MonoTime deadline) override {
    TRY(auto stream, streams_->accept(deadline));
    return std::unique_ptr<Arrival>(
        std::make_unique<SimArrival>(std::make_unique<SimLink>(process_, std::move(stream))));
  }
  void close() override { streams_->close(); }
  Result<std::unique_ptr<Link>> dial(const std::string& host, std::uint16_t port, MonoTime deadline,
                                     std::stop_token stop) override {
    TRY(auto stream, streams_->dial(host, port, deadline, stop));
    return std::unique_ptr<Link>(std::make_unique<SimLink>(process_, std::move(stream)));
  }

 private:
  SimProcess& process_;
  const std::unique_ptr<SimStreams> streams_;
};

}  // namespace

std::unique_ptr<LinkNetwork> make_sim_links(SimProcess& process,
                                            std::unique_ptr<SimStreams> streams) {
  return std::make_unique<SimLinkNetwork>(process, std::move(streams));
}

}  // namespace rubato::sim
