#include "worker/collective/link_hub.h"

#include "common/log.h"
#include "worker/collective/sockets.h"
#include "worker/collective/tls.h"
#include "worker/protocol/wire.pb.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace rubato::worker {

std::string to_string(const WorkerName& name) {
  return name.pod_uid + "/" + std::to_string(name.slot) + "#" + std::to_string(name.incarnation);
}

namespace {
constexpr std::uint32_t kLinkVersion = 1;
constexpr auto kDialRetry = 20ms;  // doubled up to kDialRetryMax
constexpr auto kDialRetryMax = 320ms;

MonoTime now() { return SystemClock().now(); }

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

struct Handshake {
  std::thread thread;
  std::atomic<bool> done{false};
};
}  // namespace

struct LinkHub::Impl {
  LinkHubConfig config;
  std::unique_ptr<TlsIdentity> identity;
  Socket listener;
  std::uint16_t port = 0;
  Cancellation stop;
  std::thread acceptor;
  std::list<Handshake> handshakes;  // of the acceptor's thread

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t fenced_below = 0;
  std::deque<Waiting> waiting;  // oldest first, at most kWaitingLinks
  std::map<std::string, Handler> servers;

  void accept_loop();
  void reap(bool all);
  void greet(int fd);
  wire::LinkAnswer judge(const wire::LinkHello& hello);
  void place(const wire::LinkHello& hello, std::unique_ptr<Link> link);
};

Result<std::unique_ptr<LinkHub>> LinkHub::open(const LinkHubConfig& config) {
  // OpenSSL writes without MSG_NOSIGNAL: a peer that died must be an error, not our end.
  std::signal(SIGPIPE, SIG_IGN);
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  TRY(impl->identity, TlsIdentity::open(config.secret_dir, config.job_uid));
  TRY(impl->listener, listen_tcp(config.bind_host, config.port));
  TRY(impl->port, local_port(impl->listener.fd()));
  Impl* raw = impl.get();
  impl->acceptor = std::thread([raw] { raw->accept_loop(); });
  return std::unique_ptr<LinkHub>(new LinkHub(std::move(impl)));
}

LinkHub::LinkHub(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinkHub::~LinkHub() {
  impl_->stop.cancel();
  impl_->acceptor.join();
}
std::uint16_t LinkHub::port() const { return impl_->port; }

// ---- Inbound
// -------------------------------------------------------------------------------------

void LinkHub::Impl::accept_loop() {
  while (!stop.is_cancelled()) {
    reap(false);
    // With all handshake places taken, new connections wait in the backlog.
    const bool full = handshakes.size() >= kPendingLinkHandshakes;
    std::array<pollfd, 2> entries{pollfd{stop.fd(), POLLIN, 0}, pollfd{listener.fd(), POLLIN, 0}};
    ::poll(entries.data(), full ? 1 : 2, full ? 10 : 1000);
    if (stop.is_cancelled() || full || entries[1].revents == 0) continue;
    const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    Handshake& handshake = handshakes.emplace_back();
    handshake.thread = std::thread([this, fd, &handshake] {
      greet(fd);
      handshake.done.store(true);
    });
  }
  reap(true);
}

void LinkHub::Impl::reap(bool all) {
  for (auto it = handshakes.begin(); it != handshakes.end();) {
    if (!all && !it->done.load()) {
      ++it;
      continue;
    }
    it->thread.join();
    it = handshakes.erase(it);
  }
}

void LinkHub::Impl::greet(int fd) {
  tune_socket(fd);
  const MonoTime deadline = now() + kLinkHandshakeLimit;
  auto link = identity->secure(fd, TlsIdentity::Side::kAccepts, deadline, stop);
  if (!link.ok()) {
    LOG_WARNING("links", "refused a connection: {}", link.error().what());
    return;
  }
  const auto body = link.value()->receive_frame(deadline);
  wire::LinkHello hello;
  if (!body.ok() || !hello.ParseFromString(body.value())) return;
  const wire::LinkAnswer answer = judge(hello);
  const Status sent = link.value()->send_frame(answer.SerializeAsString(), deadline);
  if (!answer.accepted()) {
    LOG_INFO("links", "refused {} of generation {} from {}: {}", hello.purpose(),
             hello.generation(), to_string(name_of(hello.from())), answer.reason());
    return;
  }
  if (sent.ok()) place(hello, std::move(link).value());
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
  } else if (hello.generation() < fenced_below) {
    answer.set_reason("generation is fenced");
  } else {
    answer.set_accepted(true);
  }
  return answer;
}

void LinkHub::Impl::place(const wire::LinkHello& hello, std::unique_ptr<Link> link) {
  const WorkerName from = name_of(hello.from());
  std::unique_lock lock(mutex);
  if (hello.generation() < fenced_below) return;  // fenced since it was judged
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
  changed.notify_all();
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
      return item.generation == generation && item.from == from && item.purpose == purpose;
    });
    if (found != impl_->waiting.end()) {
      auto link = std::move(found->link);
      impl_->waiting.erase(found);
      return link;
    }
    if (impl_->changed.wait_until(lock, deadline) == std::cv_status::timeout) {
      return Error(Code::kTimeout, "no link from " + to_string(from));
    }
  }
}

// ---- Outbound
// ------------------------------------------------------------------------------------

namespace {
Result<std::unique_ptr<Link>> dial_once(const TlsIdentity& identity, const Peer& to,
                                        const wire::LinkHello& hello, MonoTime deadline,
                                        const Cancellation& cancel) {
  TRY(Socket socket, connect_tcp(to.host, to.port, deadline, cancel));
  TRY(auto link, identity.secure(socket.release(), TlsIdentity::Side::kDials, deadline, cancel));
  TRY_OK(link->send_frame(hello.SerializeAsString(), deadline));
  TRY(const std::string body, link->receive_frame(deadline));
  wire::LinkAnswer answer;
  if (!answer.ParseFromString(body)) return Error(Code::kInternal, "answer cannot be read");
  if (answer.accepted()) return link;
  const Code code = hello.generation() < answer.fenced_below() ? Code::kExpired : Code::kDenied;
  return Error(code, "peer refused: " + answer.reason());
}
}  // namespace

Result<std::unique_ptr<Link>> LinkHub::dial(const Peer& to, std::uint64_t generation,
                                            const std::string& purpose, MonoTime deadline,
                                            const Cancellation& cancel) {
  wire::LinkHello hello;
  hello.set_version(kLinkVersion);
  hello.set_job_uid(impl_->config.job_uid);
  hello.set_generation(generation);
  hello.set_purpose(purpose);
  fill(*hello.mutable_from(), impl_->config.self);
  fill(*hello.mutable_to(), to.name);
  const std::string context = "link to " + to_string(to.name);
  Duration pause = kDialRetry;
  for (;;) {
    if (generation < fenced_below()) return Error(Code::kExpired, context + ": fenced");
    auto link = dial_once(*impl_->identity, to, hello, deadline, cancel);
    if (link.ok()) return link;
    const Code code = link.error().code();
    const bool retries = code == Code::kUnavailable && now() + pause < deadline;
    if (!retries) return link.error().in(context);
    pollfd entry{cancel.fd(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(pause / 1ms));
    if (cancel.is_cancelled()) return Error(Code::kCancelled, context + ": cancelled");
    pause = std::min<Duration>(pause * 2, kDialRetryMax);
  }
}

// ---- Fence
// ---------------------------------------------------------------------------------------

void LinkHub::fence(std::uint64_t below) {
  const std::lock_guard lock(impl_->mutex);
  if (below <= impl_->fenced_below) return;
  impl_->fenced_below = below;
  std::erase_if(impl_->waiting, [&](const Waiting& item) { return item.generation < below; });
  impl_->changed.notify_all();
}

std::uint64_t LinkHub::fenced_below() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->fenced_below;
}

}  // namespace rubato::worker
