#include "common/testing/sim_wire.h"

#include "common/net/certificates.h"

#include <algorithm>

namespace rubato::testing {

using namespace sim_wire;

namespace {
constexpr std::size_t kBacklogMax = 256;
constexpr Duration kDialAgain = 1s;  // TCP's first retransmission of a SYN
}  // namespace

ConnectionPtr SimNetwork::Impl::connect(const Attempt& attempt, const BacklogPtr& backlog) {
  const auto connection = std::make_shared<Connection>();
  connection->dialer_name = attempt.name;
  connection->sides[0].process = attempt.process;
  connection->sides[0].address = {attempt.from, ++next_port};
  connection->sides[1].process = backlog->process;
  connection->sides[1].address = backlog->local;
  for (Side& side : connection->sides) {
    side.readable = side.process->make_condition();
    side.writable = side.process->make_condition();
  }
  std::erase_if(connections, [](const auto& weak) {
    const auto known = weak.lock();
    return !known || known->is_over();
  });
  connections.push_back(connection);
  return connection;
}

std::vector<ConnectionPtr> SimNetwork::Impl::live() {
  std::vector<ConnectionPtr> out;
  for (const auto& weak : connections) {
    if (auto connection = weak.lock()) out.push_back(std::move(connection));
  }
  return out;
}

void SimNetwork::Impl::send(const ConnectionPtr& connection, std::size_t to, Item item) {
  Side& side = connection->sides.at(to);
  item.due = std::max(side.last_due, sim.now() + delay());
  side.last_due = item.due;
  side.flight.push_back(std::move(item));
  // The callback keeps the connection: an end must arrive even when the sender has let go of it.
  later(side.last_due - sim.now(), [connection, to](Impl& self) { self.deliver(*connection, to); });
}

// Hands over what is due, in order; nothing passes a cut.
void SimNetwork::Impl::deliver(Connection& connection, std::size_t to) {
  Side& side = connection.sides.at(to);
  Side& from = connection.sides.at(1 - to);
  while (!side.flight.empty() && side.flight.front().due <= sim.now() &&
         !cut_between(side.address.host, from.address.host)) {
    Item item = std::move(side.flight.front());
    side.flight.pop_front();
    if (side.closed || side.gone) {
      side.bytes -= item.is_end ? 0 : item.frame.size() + kSimFrameHeader;
    } else if (item.is_end) {
      side.gone = true;
      side.why = item.why;
      side.notify_writable();
    } else {
      side.inbox.push_back(std::move(item.frame));
    }
    side.notify_readable();
    from.notify_writable();
  }
}

void SimNetwork::Impl::close(const ConnectionPtr& connection, std::size_t index,
                             const std::string& why) {
  Side& side = connection->sides.at(index);
  if (side.closed) return;
  side.closed = true;
  side.inbox = {};
  side.notify_readable();
  side.notify_writable();
  if (!side.gone) send(connection, 1 - index, {.frame = {}, .is_end = true, .why = why});
  // What a crashed process owns stays; that need not be much.
  if (connection->is_over())
    for (Side& each : connection->sides) each.flight = {};
}

BacklogPtr SimNetwork::Impl::listen(SimProcess& process, net::Endpoint at) {
  const bool any = at.port == 0;
  while (any && (at.port == 0 || backlogs.count({at.host, at.port}) > 0)) at.port = ++next_port;
  const auto backlog = std::make_shared<Backlog>();
  backlog->process = &process;
  backlog->local = at;
  backlog->arrived = process.make_condition();
  return backlogs.emplace(std::pair(at.host, at.port), backlog).second ? backlog : nullptr;
}

void SimNetwork::Impl::stop_listening(const BacklogPtr& backlog) {
  if (backlog->closed) return;
  backlog->closed = true;
  const auto found = backlogs.find({backlog->local.host, backlog->local.port});
  if (found != backlogs.end() && found->second == backlog) backlogs.erase(found);
  for (const auto& connection : backlog->ready) close(connection, 1, "not taken");
  backlog->ready.clear();
  backlog->arrived->notify_all();
}

Result<ConnectionPtr> SimNetwork::Impl::dial(SimProcess& process, const std::string& from,
                                             const net::Endpoint& to, MonoTime deadline,
                                             const std::stop_token& stop, std::string name) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->process = &process;
  attempt->from = from;
  attempt->to = to;
  attempt->name = std::move(name);
  attempt->finished = process.make_condition();
  later(delay(), [attempt](Impl& impl) { impl.knock(attempt); });
  const std::stop_callback on_stop(stop, [&] { attempt->finished->notify_all(); });
  const bool answered = sim_wait(*attempt->finished, deadline,
                                 [&] { return attempt->done || stop.stop_requested(); });
  if (!attempt->done) {
    attempt->abandoned = true;
    if (answered) return Error(Code::kCancelled, "dial " + to_string(to) + ": cancelled");
    return Error(Code::kTimeout, "dial " + to_string(to) + ": time limit");
  }
  if (!attempt->connection)
    return Error(Code::kUnavailable, "dial " + to_string(to) + ": connection refused");
  return attempt->connection;
}

const std::string& SimNetwork::Impl::name_in(const std::string& certificate) {
  const auto [at, is_new] = names.try_emplace(certificate);
  if (is_new) at->second = net::certificate_name(certificate);
  return at->second;
}

// A dial arrives at the other host.
void SimNetwork::Impl::knock(const AttemptPtr& attempt) {
  if (attempt->abandoned || attempt->process->crashed()) return;
  const auto again = [&] { later(kDialAgain, [attempt](Impl& self) { self.knock(attempt); }); };
  if (cut_between(attempt->from, attempt->to.host)) return again();
  const auto found = backlogs.find({attempt->to.host, attempt->to.port});
  if (found != backlogs.end()) {
    const BacklogPtr& backlog = found->second;
    if (backlog->demands_name && attempt->name.empty())
      return later(delay(), [attempt](Impl& self) { self.answer(attempt); });
    if (backlog->process->frozen() || backlog->ready.size() >= kBacklogMax) return again();
    attempt->connection = connect(*attempt, backlog);
    backlog->ready.push_back(attempt->connection);
    backlog->arrived->notify_all();
  }
  later(delay(), [attempt](Impl& self) { self.answer(attempt); });
}

// The other host's answer arrives at the dialer.
void SimNetwork::Impl::answer(const AttemptPtr& attempt) {
  if (attempt->abandoned || attempt->process->crashed()) {
    if (attempt->connection) close(attempt->connection, 0, "the dialer gave up");
    return;
  }
  if (cut_between(attempt->from, attempt->to.host)) {
    later(kDialAgain, [attempt](Impl& self) { self.answer(attempt); });
    return;
  }
  attempt->done = true;
  attempt->finished->notify_all();
}

void SimNetwork::Impl::process_crashed(const SimProcess& process) {
  std::erase_if(backlogs, [&](const auto& entry) { return entry.second->process == &process; });
  for (const ConnectionPtr& connection : live()) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (connection->sides[i].process == &process) close(connection, i, "reset by the peer");
    }
  }
}

// What waited at a cut travels now.
void SimNetwork::Impl::healed() {
  for (const ConnectionPtr& connection : live()) {
    for (std::size_t i = 0; i < 2; ++i) {
      Side& side = connection->sides[i];
      if (side.flight.empty() || side.flight.front().due > sim.now()) continue;
      const Duration travel = delay();
      for (Item& item : side.flight) item.due = std::max(item.due, sim.now() + travel);
      side.last_due = std::max(side.last_due, sim.now() + travel);
      for (const MonoTime due : {side.flight.front().due, side.last_due}) {
        later(due - sim.now(), [connection, i](Impl& self) { self.deliver(*connection, i); });
      }
    }
  }
}

}  // namespace rubato::testing
