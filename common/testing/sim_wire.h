// Private to this folder: what travels in a SimNetwork, and how. Everything here runs on the
// executor's one thread.
#pragma once

#include "common/testing/sim_network.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace rubato::testing {

constexpr std::size_t kSimFrameHeader = 4;
constexpr std::uint16_t kFirstFreePort = 20'000;

namespace sim_wire {

// A frame on its way, or the end of the stream.
struct Item {
  std::string frame;
  bool is_end = false;
  std::string why;
  MonoTime due{};
};

struct Side {
  SimProcess* process = nullptr;
  net::Endpoint address;
  std::unique_ptr<Condition> readable;
  std::unique_ptr<Condition> writable;
  std::deque<Item> flight;  // towards this side
  MonoTime last_due{};
  std::deque<std::string> inbox;
  std::size_t bytes = 0;  // in flight and in the inbox
  bool closed = false;    // by this side, or its process crashed
  bool gone = false;      // the other side's end arrived, or a reset
  std::string why;
  std::vector<Condition*> watchers;  // of those who wait for several sides at once
  std::function<void()> news;        // Channel::on_news

  void notify_readable() {
    notify(*readable);
    if (news) news();
  }
  void notify_writable() { notify(*writable); }

 private:
  void notify(Condition& condition) {
    condition.notify_all();
    for (Condition* watcher : watchers) watcher->notify_all();
  }
};

struct Connection {
  std::array<Side, 2> sides;  // the dialer, the acceptor
  std::string dialer_name;    // by its certificate

  bool is_over() const { return sides[0].closed && sides[1].closed; }
};
using ConnectionPtr = std::shared_ptr<Connection>;

struct Backlog {
  SimProcess* process = nullptr;
  net::Endpoint local;
  std::unique_ptr<Condition> arrived;
  std::deque<ConnectionPtr> ready;
  bool demands_name = false;  // of who dials
  bool closed = false;
};
using BacklogPtr = std::shared_ptr<Backlog>;

struct Attempt {
  SimProcess* process = nullptr;
  std::string from;
  net::Endpoint to;
  std::string name;  // by the dialer's certificate
  std::unique_ptr<Condition> finished;
  bool abandoned = false;
  bool done = false;
  ConnectionPtr connection;
};
using AttemptPtr = std::shared_ptr<Attempt>;

}  // namespace sim_wire

template <class Predicate>
bool sim_wait(Condition& condition, MonoTime deadline, Predicate done) {
  std::mutex mutex;  // only satisfies Condition's signature
  std::unique_lock lock(mutex);
  return condition.wait_until(lock, deadline, done);
}

struct SimNetwork::Impl : public std::enable_shared_from_this<SimNetwork::Impl> {
  Impl(SimExecutor& executor, std::uint64_t seed) : sim(executor), rng(seed) {}

  bool cut_between(const std::string& a, const std::string& b) const {
    if (a == b) return false;
    return cut_hosts.count(a) > 0 || cut_hosts.count(b) > 0 || cut_pairs.count(std::minmax(a, b));
  }
  Duration delay() {
    const auto spread = static_cast<std::uint64_t>((link.delay_max - link.delay_min).count());
    return link.delay_min + Duration(static_cast<std::int64_t>(rng.below(spread + 1)));
  }
  // Calls `fn(*this)` after `wait`, unless the network is gone by then.
  template <class Function>
  void later(Duration wait, Function fn) {
    sim.at(sim.now() + wait, [weak = weak_from_this(), fn = std::move(fn)] {
      if (const auto self = weak.lock()) fn(*self);
    });
  }

  sim_wire::ConnectionPtr connect(const sim_wire::Attempt& attempt,
                                  const sim_wire::BacklogPtr& backlog);
  void send(const sim_wire::ConnectionPtr& connection, std::size_t to, sim_wire::Item item);
  void deliver(sim_wire::Connection& connection, std::size_t to);
  void close(const sim_wire::ConnectionPtr& connection, std::size_t side, const std::string& why);
  // Null where the port is taken.
  sim_wire::BacklogPtr listen(SimProcess& process, net::Endpoint at);
  void stop_listening(const sim_wire::BacklogPtr& backlog);
  // Waits until the other host has answered, `deadline`, or `stop` is requested.
  Result<sim_wire::ConnectionPtr> dial(SimProcess& process, const std::string& from,
                                       const net::Endpoint& to, MonoTime deadline,
                                       const std::stop_token& stop = {}, std::string name = "");
  // Parsing a certificate costs more than all else that a dial does.
  const std::string& name_in(const std::string& certificate);
  void knock(const sim_wire::AttemptPtr& attempt);
  void answer(const sim_wire::AttemptPtr& attempt);
  void process_crashed(const SimProcess& process);
  void healed();
  std::vector<sim_wire::ConnectionPtr> live();

  SimExecutor& sim;
  Rng rng;
  SimLink link;
  std::size_t piece_most = 0;  // bytes that a stream takes at once; 0: any number
  std::set<std::string> cut_hosts;
  std::set<std::pair<std::string, std::string>> cut_pairs;
  std::map<std::pair<std::string, std::uint16_t>, sim_wire::BacklogPtr> backlogs;
  std::vector<std::weak_ptr<sim_wire::Connection>> connections;
  std::map<std::string, std::string> names;  // by certificate: as many as a world issues
  std::uint16_t next_port = kFirstFreePort;
};

}  // namespace rubato::testing
