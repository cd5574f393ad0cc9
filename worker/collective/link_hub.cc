#include "worker/collective/link_hub.h"

#include "common/log.h"
#include "common/planted.h"
#include "worker/protocol/wire.pb.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace rubato::worker {

std::string to_string(const WorkerName& name) {
  return name.pod_uid + "/" + std::to_string(name.slot) + "#" + std::to_string(name.incarnation);
}

namespace {
constexpr std::uint32_t kLinkVersion = 1;
constexpr auto kDialRetry = 20ms;  // doubled up to kDialRetryMax
constexpr auto kDialRetryMax = 320ms;
constexpr auto kAcceptTick = 1s;
constexpr const char* kProbePurpose = "probe";
constexpr auto kAcceptPause = 10ms;  // while nothing more can be taken

void fill(wire::WorkerId& id, const WorkerName& name) {
  id.set_pod_uid(name.pod_uid);
  id.set_slot(name.slot);
  id.set_incarnation(name.incarnation);
}
WorkerName name_of(const wire::WorkerId& id) { return {id.pod_uid(), id.slot(), id.incarnation()}; }

struct Waiting {
  std::uint64_t generation;
  WorkerName from;
  std::string purpose;
  std::unique_ptr<Link> link;
};
}  // namespace

struct LinkHub::Impl {
  Impl(Executor& given, std::unique_ptr<LinkNetwork> links, LinkHubConfig about)
      : executor(given),
        network(std::move(links)),
        config(std::move(about)),
        changed(executor.make_condition()) {}

  Executor& executor;
  const std::unique_ptr<LinkNetwork> network;
  const LinkHubConfig config;

  std::mutex mutex;
  const std::unique_ptr<Condition> changed;
  std::uint64_t fenced_below = 0;
  std::deque<Waiting> waiting;  // oldest first, at most kWaitingLinks
  std::map<std::string, Handler> servers;
  MonoTime next_line{};  // of the log, about who is turned away

  struct Handshake {
    std::string source;
    Task task;
  };
  std::vector<Handshake> handshakes;  // of the acceptor's thread; the oldest first
  Task acceptor;                      // last: it ends before what it uses

  void accept_loop(const std::stop_token& stop);
  void forget_ended();
  std::map<std::string, std::size_t> handshakes_by_host() const;
  bool is_full() const;
  bool make_room(const std::string& source);
  void warn(const std::string& source, const std::string& why);
  void greet(Arrival& arrival, const std::string& source, const std::stop_token& stop);
  bool hear(Link& link, wire::LinkHello& hello, MonoTime deadline);
  wire::LinkAnswer judge(const wire::LinkHello& hello);
  void place(const wire::LinkHello& hello, std::unique_ptr<Link> link);
  wire::LinkHello hello(const Peer& to, std::uint64_t generation, const std::string& purpose) const;
};

LinkHub::LinkHub(Executor& executor, std::unique_ptr<LinkNetwork> network, LinkHubConfig config)
    : impl_(std::make_unique<Impl>(executor, std::move(network), std::move(config))) {
  impl_->acceptor = executor.spawn(
      "links", [impl = impl_.get()](const std::stop_token& stop) { impl->accept_loop(stop); });
}
LinkHub::~LinkHub() {
  impl_->network->close();
  impl_->acceptor = Task();
}
std::uint16_t LinkHub::port() const { return impl_->network->port(); }
Executor& LinkHub::executor() { return impl_->executor; }

// ---- Inbound
// -------------------------------------------------------------------------------------

void LinkHub::Impl::accept_loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    forget_ended();
    if (is_full()) {  // new connections wait in the backlog
      executor.sleep_for(kAcceptPause, stop);
      continue;
    }
    auto arrival = network->accept(executor.now() + kAcceptTick);
    if (!arrival.ok()) {
      if (arrival.error().code() == Code::kCancelled) break;
      if (arrival.error().code() == Code::kExhausted) executor.sleep_for(kAcceptPause, stop);
      continue;
    }
    const std::shared_ptr<Arrival> came = std::move(arrival).value();
    const std::string source = came->source();
    if (!make_room(source)) {
      warn(source, "too many connections of this host");
      continue;
    }
    const auto begin = [&] {
      return executor.try_spawn(
          "link-handshake",
          [this, came, source](const std::stop_token& stopped) { greet(*came, source, stopped); });
    };
    Result<Task> task = begin();
    if (!task.ok()) LOG_WARNING("links", "a connection waits: {}", task.error().what());
    while (!task.ok() && executor.sleep_for(kAcceptPause, stop)) task = begin();
    if (task.ok()) handshakes.push_back({source, std::move(task).value()});
  }
  handshakes.clear();
}

void LinkHub::Impl::forget_ended() {
  std::erase_if(handshakes, [](const Handshake& each) { return each.task.done(); });
}

std::map<std::string, std::size_t> LinkHub::Impl::handshakes_by_host() const {
  std::map<std::string, std::size_t> hosts;
  for (const Handshake& each : handshakes) ++hosts[each.source];
  return hosts;
}

// Whether all places are taken, and nobody would make room.
bool LinkHub::Impl::is_full() const {
  if (handshakes.size() < kPendingLinkHandshakes) return false;
  const auto has_few = [](const auto& host) { return host.second <= kFewOfHost; };
  return std::ranges::all_of(handshakes_by_host(), has_few);
}

// For one of `source`; false: it has enough already.
bool LinkHub::Impl::make_room(const std::string& source) {
  forget_ended();
  const auto hosts = handshakes_by_host();
  const auto found = hosts.find(source);
  const std::size_t own = found == hosts.end() ? 0 : found->second;
  if (!source.empty() && own >= kPendingPerHost) return false;
  if (handshakes.size() < kPendingLinkHandshakes) return true;
  const auto most =
      std::ranges::max_element(hosts, {}, [](const auto& host) { return host.second; });
  if (own >= most->second) return false;
  warn(most->first, "too many connections of this host");
  handshakes.erase(std::ranges::find(handshakes, most->first, &Handshake::source));  // and ends it
  return true;
}

// Strangers do not fill the log.
void LinkHub::Impl::warn(const std::string& source, const std::string& why) {
  {
    const std::lock_guard lock(mutex);
    const MonoTime now = executor.now();
    if (now < next_line) return;
    next_line = now + kRefusalLine;
  }
  LOG_WARNING("links", "refused a connection of {}: {}", source, why);
}

void LinkHub::Impl::greet(Arrival& arrival, const std::string& source,
                          const std::stop_token& stop) {
  const MonoTime deadline = executor.now() + kLinkHandshakeLimit;
  auto secured = arrival.secure(deadline, stop);
  if (!secured.ok()) {
    if (secured.error().code() != Code::kCancelled) warn(source, secured.error().what());
    return;
  }
  std::unique_ptr<Link> link = std::move(secured).value();
  wire::LinkHello hello;
  bool is_welcome = false;
  {
    const std::stop_callback ends(stop, [&] { link->cut(); });
    is_welcome = hear(*link, hello, deadline);
  }
  if (is_welcome && !stop.stop_requested()) place(hello, std::move(link));
}

// Whether there is a link to be placed.
bool LinkHub::Impl::hear(Link& link, wire::LinkHello& hello, MonoTime deadline) {
  const auto body = link.receive_frame(deadline);
  if (!body.ok() || !hello.ParseFromString(body.value())) return false;
  const wire::LinkAnswer answer = judge(hello);
  const Status sent = link.send_frame(answer.SerializeAsString(), deadline);
  if (hello.purpose() == kProbePurpose) return false;
  if (!answer.accepted()) {
    LOG_INFO("links", "refused {} of generation {} from {}: {}", hello.purpose(),
             hello.generation(), to_string(name_of(hello.from())), answer.reason());
    return false;
  }
  return sent.ok();
}

wire::LinkAnswer LinkHub::Impl::judge(const wire::LinkHello& hello) {
  const std::lock_guard lock(mutex);
  wire::LinkAnswer answer;
  answer.set_fenced_below(fenced_below);
  if (hello.version() != kLinkVersion) {
    answer.set_reason("unknown link version " + std::to_string(hello.version()));
  } else if (hello.job_uid() != config.job_uid) {
    answer.set_reason("another job");
  } else if (name_of(hello.to()) != config.self) {
    answer.set_reason("this is " + to_string(config.self));
  } else if (hello.generation() < fenced_below && !planted(Bug::kHubUnfenced)) {
    answer.set_reason("generation is fenced");
  } else {
    answer.set_accepted(true);
  }
  return answer;
}

void LinkHub::Impl::place(const wire::LinkHello& hello, std::unique_ptr<Link> link) {
  const WorkerName from = name_of(hello.from());
  std::unique_lock lock(mutex);
  if (hello.generation() < fenced_below && !planted(Bug::kHubUnfenced))
    return;  // fenced since it was judged
  if (const auto server = servers.find(hello.purpose()); server != servers.end()) {
    const Handler handler = server->second;
    lock.unlock();
    handler(std::move(link), from, hello.generation());
    return;
  }
  std::erase_if(waiting, [&](const Waiting& old) {  // a second try replaces the first
    return old.generation == hello.generation() && old.from == from &&
           old.purpose == hello.purpose();
  });
  if (waiting.size() >= kWaitingLinks) waiting.pop_front();
  waiting.push_back({hello.generation(), from, hello.purpose(), std::move(link)});
  changed->notify_all();
}

void LinkHub::serve(const std::string& purpose, Handler handler) {
  const std::lock_guard lock(impl_->mutex);
  impl_->servers[purpose] = std::move(handler);
}

Result<std::unique_ptr<Link>> LinkHub::await(const WorkerName& from, std::uint64_t generation,
                                             const std::string& purpose, MonoTime deadline) {
  std::unique_lock lock(impl_->mutex);
  for (;;) {
    if (generation < impl_->fenced_below) return Error(Code::kExpired, "generation is fenced");
    const auto found = std::ranges::find_if(impl_->waiting, [&](const Waiting& item) {
      const bool is_of = item.generation == generation || planted(Bug::kHubOldLink);
      return is_of && (item.from == from || planted(Bug::kHubAnyLink)) && item.purpose == purpose;
    });
    if (found != impl_->waiting.end()) {
      auto link = std::move(found->link);
      impl_->waiting.erase(found);
      return link;
    }
    if (!impl_->changed->wait_until(lock, deadline)) {
      return Error(Code::kTimeout, "no link from " + to_string(from));
    }
  }
}

// ---- Outbound
// ------------------------------------------------------------------------------------

wire::LinkHello LinkHub::Impl::hello(const Peer& to, std::uint64_t generation,
                                     const std::string& purpose) const {
  wire::LinkHello hello;
  hello.set_version(kLinkVersion);
  hello.set_job_uid(config.job_uid);
  hello.set_generation(generation);
  hello.set_purpose(purpose);
  fill(*hello.mutable_from(), config.self);
  fill(*hello.mutable_to(), to.name);
  return hello;
}

namespace {
Result<wire::LinkAnswer> greet_peer(Link& link, const wire::LinkHello& hello, MonoTime deadline) {
  TRY_OK(link.send_frame(hello.SerializeAsString(), deadline));
  TRY(const std::string body, link.receive_frame(deadline));
  wire::LinkAnswer answer;
  if (!answer.ParseFromString(body)) return Error(Code::kInternal, "answer cannot be read");
  return answer;
}

Result<std::unique_ptr<Link>> dial_once(LinkNetwork& network, const Peer& to,
                                        const wire::LinkHello& hello, MonoTime deadline,
                                        const std::stop_token& cancel) {
  TRY(auto link, network.dial(to.host, to.port, deadline, cancel));
  TRY(const wire::LinkAnswer answer, greet_peer(*link, hello, deadline));
  if (answer.accepted()) return link;
  const Code code = hello.generation() < answer.fenced_below() ? Code::kExpired : Code::kDenied;
  return Error(code, "peer refused: " + answer.reason());
}
}  // namespace

Result<std::unique_ptr<Link>> LinkHub::dial(const Peer& to, std::uint64_t generation,
                                            const std::string& purpose, MonoTime deadline,
                                            std::stop_token cancel) {
  const wire::LinkHello hello = impl_->hello(to, generation, purpose);
  const std::string context = "link to " + to_string(to.name);
  Duration pause = kDialRetry;
  for (;;) {
    if (generation < fenced_below()) return Error(Code::kExpired, context + ": fenced");
    auto link = dial_once(*impl_->network, to, hello, deadline, cancel);
    if (link.ok()) return link;
    const Code code = link.error().code();
    const bool retries = code == Code::kUnavailable && impl_->executor.now() + pause < deadline;
    if (!retries) return link.error().in(context);
    if (!impl_->executor.sleep_for(pause, cancel)) {
      return Error(Code::kCancelled, context + ": cancelled");
    }
    pause = std::min<Duration>(pause * 2, kDialRetryMax);
  }
}

// Generation 0 is fenced everywhere, so that a hub of the version before, which knows no probes,
// refuses the link too. Whatever it answers, it was reached.
bool LinkHub::probe(const Peer& to, MonoTime deadline, std::stop_token cancel) {
  const auto link = impl_->network->dial(to.host, to.port, deadline, cancel);
  return link.ok() && greet_peer(**link, impl_->hello(to, 0, kProbePurpose), deadline).ok();
}

// ---- Fence
// ---------------------------------------------------------------------------------------

void LinkHub::fence(std::uint64_t below) {
  const std::lock_guard lock(impl_->mutex);
  if (below <= impl_->fenced_below) return;
  impl_->fenced_below = below;
  std::erase_if(impl_->waiting, [&](const Waiting& item) { return item.generation < below; });
  impl_->changed->notify_all();
}

std::uint64_t LinkHub::fenced_below() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->fenced_below;
}

}  // namespace rubato::worker
