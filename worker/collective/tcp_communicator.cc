#include "worker/collective/tcp_communicator.h"

#include "worker/collective/ring.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <poll.h>

namespace rubato::worker {

namespace {
// The last resort of every wait: the coordinator's progress deadline aborts long before.
constexpr auto kOperationLimit = 30min;
constexpr auto kPollTick =
    1s;  // abort and link ends wake a poll at once; this is for the unforeseen
constexpr std::size_t kStagingBytes = 64u << 10;  // stays in the cache between receive and add
constexpr std::uint32_t kMagic = 0x52554254;      // "RUBT"

MonoTime now() { return SystemClock().now(); }

enum class Kind : std::uint32_t { kReduce = 1, kGather = 2 };

// Stands before each operation on each link, so that members that lost step with each other are
// found at once instead of adding the wrong bytes.
struct Header {
  std::uint32_t magic = kMagic;
  Kind kind = Kind::kReduce;
  std::uint64_t generation = 0;
  std::uint64_t operation = 0;
  std::uint64_t size = 0;  // elements to reduce, or bytes of the message that follows
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32);

enum class Side { kNext, kPrevious };
struct Failure {
  Side side;
  Error error;
};

// One all-reduce in flight: moves bytes until both directions are done.
class RingReduce {
 public:
  RingReduce(const RingPlan& plan, const Header& header, Link& next, Link& previous,
             const std::int32_t* in, std::int32_t* out, std::vector<std::byte>& staging)
      : plan_(plan),
        header_(header),
        next_(next),
        previous_(previous),
        in_(in),
        out_(out),
        staging_(staging) {}

  std::optional<Failure> run(MonoTime deadline) {
    while (!is_sent() || !is_received()) {
      auto sent = push();
      if (!sent.ok()) return Failure{Side::kNext, sent.error()};
      auto received = pull();
      if (!received.ok()) return Failure{Side::kPrevious, received.error()};
      if (sent.value() || received.value()) continue;
      if (now() > deadline) {
        return Failure{Side::kPrevious, Error(Code::kTimeout, "nothing moved for too long")};
      }
      if (wait()) return Failure{Side::kNext, Error(Code::kUnavailable, "peer closed its link")};
    }
    return std::nullopt;
  }

 private:
  bool is_sent() const { return send_step_ == plan_.steps(); }
  bool is_received() const { return receive_step_ == plan_.steps(); }

  // Bytes of send step `send_step_` that may leave: all of the first, then what has arrived.
  std::int64_t sendable() const {
    const std::int64_t all = plan_.sent(send_step_).count * 4;
    if (send_step_ == 0 || receive_step_ >= send_step_) return all;
    return receive_step_ + 1 == send_step_ ? received_bytes_ : 0;
  }

  Result<bool> push() {
    blocked_on_send_ = false;
    if (header_sent_ < sizeof header_) {
      const auto* at = reinterpret_cast<const std::byte*>(&header_) + header_sent_;
      TRY(const std::size_t moved, next_.try_write(at, sizeof header_ - header_sent_));
      header_sent_ += moved;
      blocked_on_send_ = moved == 0;
      return moved > 0;
    }
    if (is_sent()) return false;
    const Segment segment = plan_.sent(send_step_);
    const std::int64_t ready = sendable();
    if (sent_bytes_ == segment.count * 4) {
      ++send_step_;
      sent_bytes_ = 0;
      return true;
    }
    if (ready == sent_bytes_) return false;  // waits for the previous member, not for the socket
    const std::int32_t* from = (send_step_ == 0 ? in_ : out_) + segment.first;
    TRY(const std::size_t moved,
        next_.try_write(
            reinterpret_cast<const std::byte*>(from) + sent_bytes_,
            std::min<std::size_t>(static_cast<std::size_t>(ready - sent_bytes_), kStagingBytes)));
    sent_bytes_ += static_cast<std::int64_t>(moved);
    blocked_on_send_ = moved == 0;
    return moved > 0;
  }

  Result<bool> pull() {
    if (is_received()) return false;
    if (header_received_ < sizeof header_) return pull_header();
    const Segment segment = plan_.received(receive_step_);
    if (received_bytes_ == segment.count * 4) {
      ++receive_step_;
      received_bytes_ = 0;
      return true;
    }
    const auto left = static_cast<std::size_t>(segment.count * 4 - received_bytes_);
    return plan_.is_reduce(receive_step_) ? pull_and_add(segment, left) : pull_copy(segment, left);
  }

  Result<bool> pull_header() {
    auto* at = reinterpret_cast<std::byte*>(&peer_header_) + header_received_;
    TRY(const std::size_t moved, previous_.try_read(at, sizeof header_ - header_received_));
    header_received_ += moved;
    if (header_received_ == sizeof header_ && peer_header_ != header_) {
      return Error(Code::kInternal, "peer is in another operation");
    }
    return moved > 0;
  }

  Result<bool> pull_and_add(const Segment& segment, std::size_t left) {
    const std::size_t want = std::min(left - staged_bytes_, staging_.size() - staged_bytes_);
    TRY(const std::size_t moved, previous_.try_read(staging_.data() + staged_bytes_, want));
    staged_bytes_ += moved;
    const auto whole = static_cast<std::int64_t>(staged_bytes_ / 4);
    if (whole > 0) {
      const std::int64_t first = segment.first + received_bytes_ / 4;
      add_int32(out_ + first, in_ + first, reinterpret_cast<const std::int32_t*>(staging_.data()),
                whole);
      received_bytes_ += whole * 4;
      const auto used = static_cast<std::size_t>(whole * 4);
      std::memmove(staging_.data(), staging_.data() + used, staged_bytes_ - used);
      staged_bytes_ -= used;
    }
    return moved > 0;
  }

  Result<bool> pull_copy(const Segment& segment, std::size_t left) {
    auto* to = reinterpret_cast<std::byte*>(out_ + segment.first) + received_bytes_;
    TRY(const std::size_t moved, previous_.try_read(to, std::min(left, kStagingBytes)));
    received_bytes_ += static_cast<std::int64_t>(moved);
    return moved > 0;
  }

  // Sleeps until something can move. True: the next member has closed while we owe it bytes.
  bool wait() {
    const auto write_events =
        static_cast<short>(POLLRDHUP | (blocked_on_send_ ? next_.wants() : 0));
    std::array<pollfd, 2> entries{
        pollfd{is_sent() ? -1 : next_.fd(), write_events, 0},
        pollfd{is_received() ? -1 : previous_.fd(), previous_.wants(), 0}};
    ::poll(entries.data(), entries.size(), static_cast<int>(kPollTick / 1ms));
    return (entries[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

  const RingPlan plan_;
  const Header header_;
  Header peer_header_;
  Link& next_;
  Link& previous_;
  const std::int32_t* in_;
  std::int32_t* out_;
  std::vector<std::byte>& staging_;
  std::size_t header_sent_ = 0;
  std::size_t header_received_ = 0;
  std::uint32_t send_step_ = 0;
  std::uint32_t receive_step_ = 0;
  std::int64_t sent_bytes_ = 0;      // of send_step_
  std::int64_t received_bytes_ = 0;  // of receive_step_, added or in place
  std::size_t staged_bytes_ = 0;     // received, not yet a whole element
  bool blocked_on_send_ = false;
};

class TcpCommunicator : public Communicator {
 public:
  TcpCommunicator(Membership membership, Device& device, std::unique_ptr<Link> next,
                  std::unique_ptr<Link> previous)
      : membership_(std::move(membership)),
        device_(device),
        next_(std::move(next)),
        previous_(std::move(previous)),
        staging_(kStagingBytes) {}

  std::uint64_t generation() const override { return membership_.generation; }
  std::uint32_t rank() const override { return membership_.rank; }
  std::uint32_t size() const override { return membership_.size(); }

  Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out) override;
  Result<std::vector<std::string>> gather(std::string_view mine) override;

  void abort() override {
    aborted_.store(true);
    if (next_) next_->cut();
    if (previous_) previous_->cut();
  }
  std::optional<LinkFault> fault() const override {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  Status ring(const std::int32_t* in, std::int32_t* out, std::int64_t count);
  Result<std::string> pass(const Header& header, std::string_view message, MonoTime deadline);
  Error failed(const Failure& failure);
  Header header(Kind kind, std::uint64_t size) const {
    return {kMagic, kind, membership_.generation, operation_, size};
  }

  const Membership membership_;
  Device& device_;
  std::unique_ptr<Link> next_;  // both null for a single member
  std::unique_ptr<Link> previous_;
  std::vector<std::byte> staging_;
  std::vector<std::int32_t> host_in_;  // only for devices whose memory the host cannot see
  std::vector<std::int32_t> host_out_;
  std::uint64_t operation_ = 0;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::optional<LinkFault> fault_;
};

Error TcpCommunicator::failed(const Failure& failure) {
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  const std::uint32_t distance = failure.side == Side::kNext ? 1 : size() - 1;
  const std::uint32_t peer = (rank() + distance) % size();
  const WorkerName& name = membership_.members[peer].name;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = LinkFault{peer, name, failure.error.what()};
  }
  return failure.error.in("link with " + to_string(name));
}

Status TcpCommunicator::all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out) {
  CHECK_EQ(in.count(), out.count());
  CHECK(in.type() == DType::kI32 && out.type() == DType::kI32);
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  if (size() == 1) {
    device_.copy(stream, out, in);
    return stream.synchronize();
  }
  const auto* from = static_cast<const std::int32_t*>(device_.host_view(in));
  auto* to = static_cast<std::int32_t*>(device_.host_view(out));
  const bool staged = from == nullptr || to == nullptr;
  if (staged) {
    host_in_.resize(static_cast<std::size_t>(in.count()));
    host_out_.resize(static_cast<std::size_t>(in.count()));
    device_.copy_to_host(stream, host_in_.data(), in);
    from = host_in_.data();
    to = host_out_.data();
  }
  TRY_OK(stream.synchronize());
  TRY_OK(ring(from, to, in.count()));
  if (!staged) return ok();
  device_.copy_to_device(stream, out, to);
  return stream.synchronize();
}

Status TcpCommunicator::ring(const std::int32_t* in, std::int32_t* out, std::int64_t count) {
  const RingPlan plan(count, size(), rank());
  RingReduce reduce(plan, header(Kind::kReduce, static_cast<std::uint64_t>(count)), *next_,
                    *previous_, in, out, staging_);
  ++operation_;
  if (auto failure = reduce.run(now() + kOperationLimit)) return failed(*failure);
  return ok();
}

// Sends `message` to the next member, receives one from the previous. The sockets' buffers hold a
// message whole, so sending first cannot lock the ring.
Result<std::string> TcpCommunicator::pass(const Header& header, std::string_view message,
                                          MonoTime deadline) {
  std::string frame(sizeof header, '\0');
  std::memcpy(frame.data(), &header, sizeof header);
  frame.append(message);
  if (auto sent = next_->write_all(frame.data(), frame.size(), deadline); !sent.ok()) {
    return failed({Side::kNext, sent.error()});
  }
  Header theirs;
  if (auto got = previous_->read_all(&theirs, sizeof theirs, deadline); !got.ok()) {
    return failed({Side::kPrevious, got.error()});
  }
  Header expected = header;
  expected.size = theirs.size;
  if (theirs != expected || theirs.size > kGatherBytes) {
    return failed({Side::kPrevious, Error(Code::kInternal, "peer is in another operation")});
  }
  std::string body(theirs.size, '\0');
  if (auto got = previous_->read_all(body.data(), body.size(), deadline); !got.ok()) {
    return failed({Side::kPrevious, got.error()});
  }
  return body;
}

Result<std::vector<std::string>> TcpCommunicator::gather(std::string_view mine) {
  CHECK_LE(mine.size(), kGatherBytes);
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  std::vector<std::string> all(size());
  all[rank()] = mine;
  const MonoTime deadline = now() + kOperationLimit;
  for (std::uint32_t step = 0; step + 1 < size(); ++step) {
    const std::string& message = all[(rank() + size() - step) % size()];
    TRY(all[(rank() + size() - step - 1) % size()],
        pass(header(Kind::kGather, message.size()), message, deadline));
    ++operation_;
  }
  return all;
}
}  // namespace

Result<std::unique_ptr<Communicator>> TcpCommunicatorFactory::create(const Membership& membership,
                                                                     MonoTime deadline) {
  CHECK_LT(membership.rank, membership.size());
  if (membership.generation < hub_.fenced_below()) {
    return Error(Code::kExpired, "generation is fenced");
  }
  std::unique_ptr<Link> next;
  std::unique_ptr<Link> previous;
  if (membership.size() > 1) {
    const std::uint32_t size = membership.size();
    const Peer& to = membership.members[(membership.rank + 1) % size];
    const Peer& from = membership.members[(membership.rank + size - 1) % size];
    Cancellation cancel;
    const Pending pending{membership.generation, &cancel};
    {
      const std::lock_guard lock(mutex_);
      pending_.insert(pending);
    }
    auto dialled = hub_.dial(to, membership.generation, "ring",
                             std::min<MonoTime>(deadline, now() + kReachLimit), cancel);
    {
      const std::lock_guard lock(mutex_);
      pending_.erase(pending);
    }
    if (!dialled.ok()) {
      if (membership.generation < hub_.fenced_below()) {
        return Error(Code::kExpired, "generation is fenced");
      }
      Error error = dialled.error();
      const Code code = error.code();
      if (code == Code::kTimeout || code == Code::kUnavailable) error.set_reason(kNextUnreachable);
      return error;
    }
    next = std::move(dialled).value();
    TRY(previous, hub_.await(from.name, membership.generation, "ring", deadline));
  }
  return std::unique_ptr<Communicator>(
      std::make_unique<TcpCommunicator>(membership, device_, std::move(next), std::move(previous)));
}

void TcpCommunicatorFactory::fence(std::uint64_t below) {
  hub_.fence(below);
  const std::lock_guard lock(mutex_);
  for (const Pending& pending : pending_) {
    if (pending.generation < below) pending.cancel->cancel();
  }
}

}  // namespace rubato::worker
