#include "common/testing/sim_stream.h"

#include "common/testing/sim_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rubato::testing {

using namespace sim_wire;

struct SimStream::Impl {
  Side& own() { return connection->sides.at(index); }
  const Side& own() const { return connection->sides.at(index); }
  Side& other() { return connection->sides.at(1 - index); }
  std::size_t room() const {
    const std::size_t unread = connection->sides.at(1 - index).bytes;
    return unread >= kStreamWindow ? 0 : kStreamWindow - unread;
  }
  bool is_ready() const {
    const Side& side = own();
    if (side.closed || side.gone) return true;
    return waits_to_write ? room() > 0 : !side.inbox.empty();
  }

  std::shared_ptr<SimNetwork::Impl> network;
  ConnectionPtr connection;
  std::size_t index;
  std::unique_ptr<Condition> changed;  // of this end's own waits
  std::size_t taken = 0;               // of the inbox's first piece
  bool waits_to_write = false;
};

SimStream::SimStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SimStream::~SimStream() { impl_->network->close(impl_->connection, impl_->index, "closed"); }

Result<std::size_t> SimStream::try_read(void* to, std::size_t bytes) {
  Side& side = impl_->own();
  if (side.closed) return Error(Code::kCancelled, "link was cut");
  std::size_t moved = 0;
  while (moved < bytes && !side.inbox.empty()) {
    const std::string& piece = side.inbox.front();
    const std::size_t some = std::min(bytes - moved, piece.size() - impl_->taken);
    std::memcpy(static_cast<char*>(to) + moved, piece.data() + impl_->taken, some);
    moved += some;
    impl_->taken += some;
    if (impl_->taken < piece.size()) break;
    side.bytes -= piece.size() + kSimFrameHeader;
    side.inbox.pop_front();
    impl_->taken = 0;
    impl_->other().notify_writable();
  }
  if (moved == 0 && side.gone) return Error(Code::kUnavailable, "receiving: " + side.why);
  impl_->waits_to_write = false;
  return moved;
}

Result<std::size_t> SimStream::try_write(const void* from, std::size_t bytes) {
  Side& side = impl_->own();
  if (side.closed) return Error(Code::kCancelled, "link was cut");
  if (side.gone) return Error(Code::kUnavailable, "sending: " + side.why);
  impl_->waits_to_write = true;
  std::size_t some = std::min(bytes, impl_->room());
  if (some == 0) return some;
  if (impl_->network->piece_most > 0)
    some = std::min(some, 1 + impl_->network->rng.below(impl_->network->piece_most));
  impl_->other().bytes += some + kSimFrameHeader;
  impl_->network->send(impl_->connection, 1 - impl_->index,
                       {.frame = std::string(static_cast<const char*>(from), some), .why = {}});
  return some;
}

void SimStream::wait_among(std::span<StreamWait> waits, MonoTime deadline) {
  CHECK(!waits.empty());
  Condition* changed = waits.front().stream->impl_->changed.get();
  for (const StreamWait& wait : waits) wait.stream->impl_->own().watchers.push_back(changed);
  sim_wait(*changed, deadline, [&] {
    return std::ranges::any_of(waits, [](const StreamWait& wait) {
      const Side& side = wait.stream->impl_->own();
      return (wait.progress && wait.stream->impl_->is_ready()) || side.closed ||
             (wait.end && side.gone);
    });
  });
  for (StreamWait& wait : waits) {
    Side& side = wait.stream->impl_->own();
    std::erase(side.watchers, changed);
    wait.ended = side.gone || side.closed;
  }
}

void SimStream::cut() { impl_->network->close(impl_->connection, impl_->index, "the peer closed"); }
bool SimStream::is_cut() const { return impl_->own().closed; }

struct SimStreams::Impl {
  std::unique_ptr<SimStream> stream(ConnectionPtr connection, std::size_t index) const {
    auto end = std::make_unique<SimStream::Impl>();
    end->network = network;
    end->connection = std::move(connection);
    end->index = index;
    end->changed = process.make_condition();
    return std::make_unique<SimStream>(std::move(end));
  }

  const std::shared_ptr<SimNetwork::Impl> network;
  SimProcess& process;
  const std::string host;
  const BacklogPtr backlog;
};

SimStreams::SimStreams(std::shared_ptr<SimNetwork::Impl> network, SimProcess& process,
                       const std::string& host)
    : impl_(new Impl{network, process, host, network->listen(process, {host, 0})}) {}
SimStreams::~SimStreams() { close(); }
std::uint16_t SimStreams::port() const { return impl_->backlog->local.port; }
void SimStreams::close() { impl_->network->stop_listening(impl_->backlog); }

Result<std::unique_ptr<SimStream>> SimStreams::accept(MonoTime deadline) {
  Backlog& backlog = *impl_->backlog;
  const bool came = sim_wait(*backlog.arrived, deadline,
                             [&] { return backlog.closed || !backlog.ready.empty(); });
  if (backlog.closed) return Error(Code::kCancelled, "closed");
  if (!came) return Error(Code::kTimeout, "nobody came");
  ConnectionPtr connection = std::move(backlog.ready.front());
  backlog.ready.pop_front();
  return impl_->stream(std::move(connection), 1);
}

Result<std::unique_ptr<SimStream>> SimStreams::dial(const std::string& host, std::uint16_t port,
                                                    MonoTime deadline,
                                                    const std::stop_token& stop) {
  TRY(ConnectionPtr connection,
      impl_->network->dial(impl_->process, impl_->host, {host, port}, deadline, stop));
  return impl_->stream(std::move(connection), 0);
}

}  // namespace rubato::testing
