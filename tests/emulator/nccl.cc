// NCCL's calls (nccl.h): a library of its own, as nccl.cc of the backend looks it up by its name.
// Members are connected by sockets on the loopback, in one process or in several: each sends what
// it has to rank 0, which adds and sends the sum back. Nothing moves but in a call: when somebody
// asks after a communicator's state, or its work on a stream is looked at. That work is "not ready"
// until the sum is here, as a kernel that waits for its neighbours; an abort lets it pass.
#include "tests/emulator/nccl.h"

#include "tests/emulator/calls.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/streams.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::emulator {

namespace {

using Words = std::vector<std::uint32_t>;

// What an id holds.
struct Address {
  std::uint64_t nonce = 0;
  std::uint16_t port = 0;
};

struct FrameHead {
  std::uint64_t nonce = 0;
  std::uint32_t rank = 0;
  std::uint32_t number = 0;  // of the sum, from 1; 0: hello, and its answer
  std::uint64_t words = 0;
};

class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  Connection(Connection&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)), out_(std::move(other.out_)) {}
  ~Connection() {
    if (fd_ >= 0) ::close(fd_);
  }
  void send(const FrameHead& head, const Words& words) {
    out_.append(reinterpret_cast<const char*>(&head), sizeof head);
    out_.append(reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]);
  }
  // Whether all of that is on its way.
  bool is_flushed() const { return out_.empty(); }
  // Moves what can be moved; false: the other end is gone.
  bool move() {
    while (!out_.empty()) {
      const ssize_t sent = ::send(fd_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EAGAIN) break;
        return false;
      }
      out_.erase(0, static_cast<std::size_t>(sent));
    }
    char buffer[1 << 16];
    for (;;) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) {
        in_.append(buffer, static_cast<std::size_t>(got));
        continue;
      }
      return got < 0 && errno == EAGAIN;
    }
  }
  // Takes a whole frame, if one is there.
  bool take(FrameHead& head, Words& words) {
    if (in_.size() < sizeof head) return false;
    std::memcpy(&head, in_.data(), sizeof head);
    const std::size_t bytes = head.words * sizeof words[0];
    if (in_.size() < sizeof head + bytes) return false;
    words.resize(head.words);
    std::memcpy(words.data(), in_.data() + sizeof head, bytes);
    in_.erase(0, sizeof head + bytes);
    return true;
  }

 private:
  int fd_;
  std::string in_, out_;
};

struct Sum {
  Words words;
  std::size_t parts = 0;
};

}  // namespace

struct Member {
  std::size_t size = 0;
  std::uint32_t rank = 0;
  Address address;
  int listening = -1;                   // of rank 0
  std::vector<Connection> connections;  // of rank 0: to all others; else: to rank 0
  std::size_t hellos = 0;
  bool is_ready = false, is_failed = false, is_aborted = false;
  std::map<std::uint32_t, Sum> sums;
  std::uint32_t last = 0;
  std::vector<std::function<void()>> waiting;  // what is to be enqueued

  ~Member() {
    if (listening >= 0) ::close(listening);
  }
  bool is_root() const { return rank == 0; }
  FrameHead head(std::uint32_t number, std::size_t words) const {
    return {address.nonce, rank, number, words};
  }
  void add(std::uint32_t number, const Words& words) {
    Sum& sum = sums[number];
    if (sum.parts++ == 0) sum.words.assign(words.size(), 0);
    for (std::size_t i = 0; i < words.size(); ++i) sum.words[i] += words[i];
    if (is_root() && sum.parts == size)
      for (Connection& each : connections) each.send(head(number, sum.words.size()), sum.words);
  }
  bool is_flushed() const { return std::ranges::all_of(connections, &Connection::is_flushed); }
  bool has(std::uint32_t number) const {
    const auto found = sums.find(number);
    return found != sums.end() && found->second.parts == (is_root() ? size : 1) && is_flushed();
  }
  void take(const FrameHead& frame, const Words& words) {
    if (frame.nonce != address.nonce) {
      is_failed = true;
    } else if (frame.number != 0) {
      add(frame.number, words);
    } else if (!is_root()) {
      is_ready = true;
    } else if (++hellos == size - 1) {
      for (Connection& each : connections) each.send(head(0, 0), {});
    }
  }
  void progress();
};

namespace {

struct State {
  std::map<std::uint16_t, int> listening;  // by port: of ids that no rank 0 has taken yet
  NcclTrouble trouble = NcclTrouble::kNone;
  std::size_t live = 0;
};
State& state() {
  static State& all = *new State;
  return all;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

template <class Do>
ncclResult_t call(const char* name, Do work) {
  const std::lock_guard guard(lock());
  if (fails(name)) return ncclInternalError;
  return work();
}

}  // namespace

void Member::progress() {
  if (is_aborted || is_failed || state().trouble == NcclTrouble::kNeverConnects) return;
  if (is_root() && connections.size() < size - 1) {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) connections.emplace_back(fd);
  }
  for (Connection& each : connections) {
    const bool is_there = each.move();
    FrameHead frame;
    Words words;
    while (each.take(frame, words)) take(frame, words);
    is_failed = is_failed || !is_there;
  }
  // Whoever is ready may not ask for long.
  for (Connection& each : connections) is_failed = !each.move() || is_failed;
  if (is_root() && hellos + 1 == size && is_flushed()) is_ready = true;
}

void make_trouble(NcclTrouble trouble) {
  const std::lock_guard guard(lock());
  state().trouble = trouble;
}
std::size_t live_communicators() {
  const std::lock_guard guard(lock());
  return state().live;
}

}  // namespace rubato::emulator

using namespace rubato::emulator;

struct ncclComm {
  std::shared_ptr<Member> member;
};

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "emulated error"; }
const char* ncclGetLastError(ncclComm_t) { return "emulated"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call("ncclGetUniqueId", [&] {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in here = loopback(0);
    socklen_t bytes = sizeof here;
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&here), bytes) != 0 ||
        ::listen(fd, SOMAXCONN) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &bytes) != 0)
      return ncclSystemError;
    const Address address{std::random_device{}(), ntohs(here.sin_port)};
    state().listening[address.port] = fd;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &address, sizeof address);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return call("ncclCommInitRankConfig", [&] {
    if (config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidUsage;
    auto member = std::make_shared<Member>();
    member->size = static_cast<std::size_t>(size);
    member->rank = static_cast<std::uint32_t>(rank);
    std::memcpy(static_cast<void*>(&member->address), &id, sizeof member->address);
    if (member->is_root()) {
      const auto found = state().listening.find(member->address.port);
      if (found == state().listening.end()) return ncclInvalidArgument;
      member->listening = found->second;
      state().listening.erase(found);
    } else {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in there = loopback(member->address.port);
      member->connections.emplace_back(fd);
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0)
        return ncclSystemError;
      member->connections.front().send(member->head(0, 0), {});
    }
    ++state().live;
    *comm = new ncclComm{std::move(member)};
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* out) {
  return call("ncclCommGetAsyncError", [&] {
    Member& member = *comm->member;
    for (const auto& enqueue : std::exchange(member.waiting, {})) enqueue();
    member.progress();
    if (member.is_failed && state().trouble != NcclTrouble::kSilent)
      *out = ncclRemoteError;
    else
      *out = member.is_ready ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
  });
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclAllReduce", [&] {
    const std::shared_ptr<Member> member = comm->member;
    if (!member->is_ready || !member->waiting.empty() || type != ncclUint32 || op != ncclSum)
      return ncclInvalidUsage;
    const std::uint32_t number = ++member->last;
    bool has_begun = false;
    const Run add = [=](std::uint32_t work) mutable -> cudaError_t {
      const std::size_t bytes = count * sizeof(std::uint32_t);
      const DeviceMemoryOpen open;
      if (member->is_aborted) return cudaSuccess;
      if (!has_begun) {
        has_begun = true;
        if (!sweep(work, in, bytes, false)) return cudaErrorIllegalAddress;
        Words words(count);
        std::memcpy(words.data(), in, bytes);
        if (!member->is_root())
          member->connections.front().send(member->head(number, count), words);
        else
          member->add(number, words);
      }
      member->progress();
      if (!member->has(number)) return cudaErrorNotReady;
      if (!sweep(work, out, bytes, true)) return cudaErrorIllegalAddress;
      const auto sum = member->sums.extract(number);
      std::memcpy(out, sum.mapped().words.data(), std::min(bytes, sum.mapped().words.size() * 4));
      return cudaSuccess;
    };
    member->waiting.push_back([=] { (void)enqueue(stream, {"a sum of NCCL"}, add); });
    return ncclInProgress;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  NcclTrouble trouble;
  {
    const std::lock_guard guard(lock());
    trouble = state().trouble;
  }
  while (trouble == NcclTrouble::kHangsInAbort) ::pause();
  const std::lock_guard guard(lock());
  const bool is_to_fail = fails("ncclCommAbort");  // it lets go all the same
  Member& member = *comm->member;
  member.is_aborted = true;
  member.connections.clear();
  member.waiting.clear();
  --state().live;
  delete comm;
  return is_to_fail ? ncclInternalError : ncclSuccess;
}
