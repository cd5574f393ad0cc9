#include "worker/collective/ring_reduce.h"

#include "common/planted.h"
#include "common/rng.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace rubato::worker {

namespace {
// Of the elements from `first` on, each by a weight of its own.
std::uint32_t weigh_hop(const std::int32_t* x, std::int64_t first, std::int64_t count) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<std::uint32_t>(mix64(static_cast<std::uint64_t>(first + i)) | 1) *
           static_cast<std::uint32_t>(x[i]);
  return sum;
}

// One all-reduce in flight: moves bytes until both directions are done.
class RingReduce {
 public:
  RingReduce(Clock& clock, const RingPlan& plan, const Header& header, Neighbour next,
             Neighbour previous, const std::int32_t* in, std::int32_t* out,
             std::vector<std::byte>& staging, HopSums* hops)
      : clock_(clock),
        plan_(plan),
        header_(header),
        next_rank_(next.rank),
        previous_rank_(previous.rank),
        next_(*next.link),
        previous_(*previous.link),
        in_(in),
        out_(out),
        staging_(staging),
        hops_(hops) {}

  std::optional<Failure> run(MonoTime deadline) {
    while (!is_sent() || !is_received()) {
      auto sent = push();
      if (!sent.ok()) return Failure{next_rank_, sent.error()};
      auto received = pull();
      if (!received.ok()) return Failure{previous_rank_, received.error()};
      if (sent.value() || received.value()) continue;
      if (clock_.now() > deadline) {
        return Failure{previous_rank_, Error(Code::kTimeout, "nothing moved for too long")};
      }
      if (wait()) return Failure{next_rank_, Error(Code::kUnavailable, "peer closed its link")};
    }
    if (hops_ != nullptr) hops_->excess = hops_->sent + kept() - hops_->got - given();
    return std::nullopt;
  }

 private:
  bool is_sent() const { return send_step_ == plan_.steps(); }
  bool is_received() const { return receive_step_ == plan_.steps(); }

  std::uint32_t given() const { return weigh_hop(in_, 0, plan_.count()); }
  // What is received last is not handed on: all else is, with what was given added to it.
  std::uint32_t kept() const {
    const Segment last = plan_.received(plan_.steps() - 1);
    return weigh_hop(out_ + last.first, last.first, last.count);
  }
  // Elements of `segment` that are whole since `before` bytes of it were there; `x` is the first of
  // the segment. At once: what has been sent may be overwritten soon.
  static std::uint32_t weigh_moved(const Segment& segment, const std::int32_t* x,
                                   std::int64_t before, std::int64_t bytes) {
    const std::int64_t from = before / 4;
    return weigh_hop(x + from, segment.first + from, bytes / 4 - from);
  }

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
            std::min<std::size_t>(static_cast<std::size_t>(ready - sent_bytes_), staging_.size())));
    const std::int64_t before = sent_bytes_;
    sent_bytes_ += static_cast<std::int64_t>(moved);
    if (hops_ != nullptr) hops_->sent += weigh_moved(segment, from, before, sent_bytes_);
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
    const std::uint32_t ahead = planted(Bug::kRingCopies) && plan_.steps() > 2 ? 1 : 0;
    return plan_.is_reduce(receive_step_ + ahead) ? pull_and_add(segment, left)
                                                  : pull_copy(segment, left);
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
      const std::int64_t first =
          segment.first + (planted(Bug::kRingPieceTwice) ? 0 : received_bytes_ / 4);
      add_int32(out_ + first, in_ + first, reinterpret_cast<const std::int32_t*>(staging_.data()),
                whole);
      if (hops_ != nullptr)
        hops_->got += weigh_hop(reinterpret_cast<const std::int32_t*>(staging_.data()),
                                segment.first + received_bytes_ / 4, whole);
      received_bytes_ += whole * 4;
      const auto used = static_cast<std::size_t>(whole * 4);
      std::memmove(staging_.data(), staging_.data() + used, staged_bytes_ - used);
      staged_bytes_ = planted(Bug::kRingHalfWord) ? 0 : staged_bytes_ - used;
    }
    return moved > 0;
  }

  Result<bool> pull_copy(const Segment& segment, std::size_t left) {
    auto* to = reinterpret_cast<std::byte*>(out_ + segment.first) + received_bytes_;
    TRY(const std::size_t moved, previous_.try_read(to, std::min(left, staging_.size())));
    const std::int64_t before = received_bytes_;
    received_bytes_ += static_cast<std::int64_t>(moved);
    if (hops_ != nullptr)
      hops_->got += weigh_moved(segment, out_ + segment.first, before, received_bytes_);
    return moved > 0;
  }

  // Sleeps until something can move. True: the next member has closed while we owe it bytes.
  bool wait() {
    std::array<LinkWait, 2> waits;
    std::size_t count = 0;
    if (!is_received()) waits[count++] = {.link = &previous_};
    const bool owes = !is_sent();
    if (owes) waits[count++] = {.link = &next_, .progress = blocked_on_send_, .end = true};
    previous_.wait_among(std::span(waits).first(count), clock_.now() + kPollTick);
    return owes && waits[count - 1].ended;
  }

  Clock& clock_;
  const RingPlan plan_;
  const Header header_;
  Header peer_header_;
  const std::uint32_t next_rank_;
  const std::uint32_t previous_rank_;
  Link& next_;
  Link& previous_;
  const std::int32_t* in_;
  std::int32_t* out_;
  std::vector<std::byte>& staging_;
  HopSums* const hops_;
  std::size_t header_sent_ = 0;
  std::size_t header_received_ = 0;
  std::uint32_t send_step_ = 0;
  std::uint32_t receive_step_ = 0;
  std::int64_t sent_bytes_ = 0;      // of send_step_
  std::int64_t received_bytes_ = 0;  // of receive_step_, added or in place
  std::size_t staged_bytes_ = 0;     // received, not yet a whole element
  bool blocked_on_send_ = false;
};

}  // namespace

std::optional<Failure> ring_reduce(Clock& clock, const RingPlan& plan, const Header& header,
                                   Neighbour next, Neighbour previous, const std::int32_t* in,
                                   std::int32_t* out, std::vector<std::byte>& staging,
                                   HopSums* hops) {
  RingReduce reduce(clock, plan, header, next, previous, in, out, staging, hops);
  return reduce.run(clock.now() + kOperationLimit);
}

}  // namespace rubato::worker
