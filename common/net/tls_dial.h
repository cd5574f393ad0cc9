// Private to common/net: from an address or a name to a connection.
#pragma once

#include "common/net/tls_connection.h"
#include "common/net/tls_network.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace rubato::net {

constexpr std::size_t kAddressesMost = 8;   // of one name; those beyond are not tried
constexpr std::size_t kQuestionsMost = 16;  // open ones; a thread each, where the system is asked
// Longer than who dials many in turn needs to come back to a name.
constexpr auto kLateAnswerAge = 1min;

class Dial;

// What DNS says. One question a name at a time; who dials waits kLookupWait for the answer. One
// that comes later is kept for the next dial, and one that comes when the network is gone is for
// nobody. I/O thread.
class NameLookups : public std::enable_shared_from_this<NameLookups> {
 public:
  NameLookups(std::shared_ptr<Io> io, Lookup lookup);  // none: the system's
  // The answer goes to Dial::found().
  void ask(const std::string& name, const std::shared_ptr<Dial>& dial);

 private:
  using Addresses = std::vector<std::string>;
  struct Question {
    MonoTime asked{};
    std::vector<std::weak_ptr<Dial>> dials;
  };
  struct LateAnswer {
    Addresses addresses;
    MonoTime until{};
  };
  void answer(const std::string& name, const Result<Addresses>& found);

  const std::shared_ptr<Io> io_;
  const Lookup lookup_;
  std::map<std::string, Question> questions_;
  std::map<std::string, LateAnswer> late_;
};

// One attempt to connect: to each address in turn, for a share of the time that is left.
class Dial : public std::enable_shared_from_this<Dial> {
 public:
  Dial(std::shared_ptr<Io> io, std::shared_ptr<NameLookups> names,
       std::shared_ptr<TlsConnection> connection, Endpoint to, std::string peer_name,
       MonoTime deadline);

  // The dialing task, once.
  Result<std::shared_ptr<TlsConnection>> wait();

  // --- I/O thread ---
  void start();
  void found(const Result<std::vector<std::string>>& addresses);

 private:
  Error unavailable(const std::string& why) const;
  void connect_next(const ErrorCode& before);
  void on_connected(const ErrorCode& code);
  // Calls `late` once the time is over, unless end_step() was called.
  void limit_step(Duration time, void (Dial::*late)());
  void end_step();
  void no_answer();
  void no_connection();
  void finish(const Status& status);

  const std::shared_ptr<Io> io_;
  const std::shared_ptr<NameLookups> names_;
  const std::shared_ptr<TlsConnection> connection_;
  const Endpoint to_;
  const std::string peer_name_;
  const MonoTime deadline_;
  boost::asio::steady_timer timer_;
  std::uint64_t step_ = 0;
  std::vector<boost::asio::ip::address> addresses_;
  std::size_t next_ = 0;
  std::mutex mutex_;
  const std::unique_ptr<Condition> finished_;
  std::optional<Status> result_;
};

}  // namespace rubato::net
