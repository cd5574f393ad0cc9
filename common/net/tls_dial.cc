#include "common/net/tls_dial.h"

#include "common/free_with.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <netdb.h>
#include <pthread.h>

namespace rubato::net {

namespace asio = boost::asio;

namespace {

Result<std::vector<std::string>> addresses_of(const std::string& name) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int failed = ::getaddrinfo(name.c_str(), nullptr, &hints, &list); failed != 0) {
    return Error(Code::kUnavailable,
                 failed == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, FreeWith<freeaddrinfo>> owner(list);
  std::vector<std::string> addresses;
  for (; list != nullptr; list = list->ai_next) {
    std::array<char, NI_MAXHOST> digits{};
    if (::getnameinfo(list->ai_addr, list->ai_addrlen, digits.data(), digits.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      addresses.emplace_back(digits.data());
  }
  return addresses;
}

// Nothing ends a question before the system's own limits, which are longer than a program may take
// to end. So each has a thread for which nobody waits: it owns a name and `done`, and nothing else.
void system_lookup(const std::string& name, const LookupDone& done) {
  try {
    std::thread([name, done] {
      pthread_setname_np(pthread_self(), "net-dns");
      done(addresses_of(name));
    }).detach();
  } catch (const std::system_error& error) {
    done(Error(Code::kUnavailable, std::string("starting a thread: ") + error.what()));
  }
}

}  // namespace

// ---- NameLookups
// ------------------------------------------------------------------------------------------------

NameLookups::NameLookups(std::shared_ptr<Io> io, Lookup lookup)
    : io_(std::move(io)), lookup_(lookup ? std::move(lookup) : system_lookup) {}

void NameLookups::ask(const std::string& name, const std::shared_ptr<Dial>& dial) {
  const MonoTime now = io_->executor.now();
  std::erase_if(late_, [&](const auto& each) { return each.second.until <= now; });
  if (const auto kept = late_.extract(name)) return dial->found(kept.mapped().addresses);
  const auto asked = questions_.find(name);
  if (asked != questions_.end()) {
    std::erase_if(asked->second.dials, [](const auto& each) { return each.expired(); });
    asked->second.dials.push_back(dial);
    return;
  }
  if (questions_.size() >= kQuestionsMost)
    return dial->found(Error(Code::kUnavailable, "too many names wait for DNS"));
  questions_[name] = {now, {dial}};
  lookup_(name, [weak = weak_from_this(), name](Result<Addresses> found) {
    const auto self = weak.lock();
    if (!self) return;  // the network is gone
    asio::post(self->io_->context, [weak, name, found = std::move(found)] {
      if (const auto names = weak.lock()) names->answer(name, found);
    });
  });
}

void NameLookups::answer(const std::string& name, const Result<Addresses>& found) {
  const auto question = questions_.extract(name);
  if (!question) return;
  const MonoTime now = io_->executor.now();
  if (found.ok() && now - question.mapped().asked >= kLookupWait)
    late_[name] = {*found, now + kLateAnswerAge};
  for (const auto& each : question.mapped().dials)
    if (const auto dial = each.lock()) dial->found(found);
}

// ---- Dial
// -------------------------------------------------------------------------------------------------

Dial::Dial(std::shared_ptr<Io> io, std::shared_ptr<NameLookups> names,
           std::shared_ptr<TlsConnection> connection, Endpoint to, std::string peer_name,
           MonoTime deadline)
    : io_(std::move(io)),
      names_(std::move(names)),
      connection_(std::move(connection)),
      to_(std::move(to)),
      peer_name_(std::move(peer_name)),
      deadline_(deadline),
      timer_(io_->context),
      finished_(io_->executor.make_condition()) {}

Result<std::shared_ptr<TlsConnection>> Dial::wait() {
  std::unique_lock lock(mutex_);
  if (!finished_->wait_until(lock, deadline_, [&] { return result_.has_value(); })) {
    result_ = Status(Error(Code::kTimeout, "dial " + to_string(to_) + ": time limit"));
    asio::post(io_->context, [self = shared_from_this()] {
      self->end_step();
      self->connection_->fail(Error(Code::kTimeout, "dial: time limit"));
    });
  }
  TRY_OK(*result_);
  return connection_;
}

void Dial::start() {
  io_->remember(connection_);
  if (is_address(to_.host)) return found(std::vector{to_.host});
  limit_step(kLookupWait, &Dial::no_answer);
  names_->ask(to_.host, shared_from_this());
}

void Dial::found(const Result<std::vector<std::string>>& addresses) {
  end_step();
  {
    const std::lock_guard lock(mutex_);
    if (result_) return;  // it has not waited for them
  }
  if (!addresses.ok()) return finish(unavailable(addresses.error().what()));
  for (const std::string& text : *addresses) {
    ErrorCode code;
    const auto address = asio::ip::make_address(text, code);
    if (!code && addresses_.size() < kAddressesMost) addresses_.push_back(address);
  }
  connect_next(asio::error::host_not_found);
}

void Dial::no_answer() { finish(unavailable("DNS has not answered yet")); }

// `before`: how it went with the address before this one.
void Dial::connect_next(const ErrorCode& before) {
  end_step();
  if (connection_->gone())
    return finish(unavailable(ErrorCode(asio::error::operation_aborted).message()));
  if (next_ == addresses_.size()) return finish(unavailable(before.message()));
  const Tcp::endpoint at(addresses_[next_++], to_.port);
  Tcp::socket& socket = connection_->socket();
  ErrorCode code;
  socket.close(code);
  socket.open(at.protocol(), code);
  if (code) return connect_next(code);
  // One share for each of the others, and one for the handshake. The last has all that is left.
  const auto others = static_cast<std::int64_t>(addresses_.size() - next_);
  if (others > 0)
    limit_step((deadline_ - io_->executor.now()) / (others + 2), &Dial::no_connection);
  socket.async_connect(
      at, [self = shared_from_this()](const ErrorCode& error) { self->on_connected(error); });
}

void Dial::no_connection() {
  ErrorCode ignored;
  connection_->socket().close(ignored);  // on_connected() goes on
}

void Dial::on_connected(const ErrorCode& code) {
  if (code == asio::error::operation_aborted || (!code && !connection_->socket().is_open()))
    return connect_next(asio::error::timed_out);
  if (code) return connect_next(code);
  end_step();
  connection_->connected();
  connection_->handshake(peer_name_, [self = shared_from_this()](const Status& status) {
    self->finish(status.ok() ? status : Status(status.error().in("dial " + to_string(self->to_))));
  });
}

void Dial::limit_step(Duration time, void (Dial::*late)()) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), late, step = step_](const ErrorCode& code) {
    if (!code && step == self->step_) (self.get()->*late)();
  });
}

void Dial::end_step() {
  ++step_;
  timer_.cancel();
}

Error Dial::unavailable(const std::string& why) const {
  return {Code::kUnavailable, "dial " + to_string(to_) + ": " + why};
}

void Dial::finish(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (result_) return;  // the dialing task no longer waits
    result_ = status;
  }
  if (status.ok()) connection_->start_reading();
  finished_->notify_all();
}

}  // namespace rubato::net
