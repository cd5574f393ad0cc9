#include "worker/collective/tcp_communicator.h"

#include "common/log.h"
#include "common/planted.h"
#include "worker/collective/operation.h"
#include "worker/collective/ring_reduce.h"
#include "worker/collective/tree_gather.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace rubato::worker {

namespace {
constexpr std::size_t kStagingBytes = 64u << 10;  // stays in the cache between receive and add
constexpr auto kChildLimit = 10s;  // its dial has ended: the hub has its link, or is about to
constexpr const char* kRing = "ring";
constexpr const char* kTree = "tree";
constexpr const char* kConnected = "connected";

}  // namespace

class TcpCommunicator : public Communicator {
 public:
  // What create() brings up. All null for a single member.
  struct Links {
    std::unique_ptr<Link> next;
    std::unique_ptr<Link> previous;
    std::unique_ptr<Link> parent;  // null at the root, and below kTreeMembers
  };
  TcpCommunicator(LinkHub& hub, Membership membership, Device& device, Links links)
      : hub_(hub),
        clock_(hub.executor().clock()),
        membership_(std::move(membership)),
        device_(device),
        links_(std::move(links)),
        changed_(hub.executor().make_condition()),
        staging_(kStagingBytes) {}

  std::uint64_t generation() const override { return membership_.generation; }
  std::uint32_t rank() const override { return membership_.rank; }
  std::uint32_t size() const override { return membership_.size(); }

  Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out, HopSums* hops) override;
  Result<std::vector<std::string>> gather(std::string_view mine) override {
    return gather(mine, clock_.now() + kOperationLimit);
  }
  Result<std::vector<std::string>> gather(std::string_view mine, MonoTime deadline);
  void vote_by_tree() override { by_tree_ = size() >= kTreeMembers; }
  // From here on gradients are added by it.
  void use(std::unique_ptr<DeviceReducer> reducer, Duration verdict_limit) {
    const std::lock_guard lock(mutex_);
    verdict_limit_ = verdict_limit;
    reducer_ = std::move(reducer);
    if (aborted_.load()) reducer_->abort();
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_.store(true);
    changed_->notify_all();
    if (reducer_) reducer_->abort();
    for (Link* link : {links_.next.get(), links_.previous.get(), links_.parent.get()}) {
      if (link != nullptr) link->cut();
    }
    for (const auto& child : children_)
      if (!planted(Bug::kAbortRingOnly)) child->cut();
  }
  std::optional<LinkFault> fault() const override {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  Neighbour next() const { return {links_.next.get(), (rank() + 1) % size()}; }
  Neighbour previous() const { return {links_.previous.get(), (rank() + size() - 1) % size()}; }
  Status add_on_device(Stream& stream, ConstBuffer in, Buffer out);
  Status ring(const std::int32_t* in, std::int32_t* out, std::int64_t count, HopSums* hops);
  Status gather_by_ring(std::vector<std::string>& all, MonoTime deadline);
  Status gather_by_tree(std::vector<std::string>& all, MonoTime deadline);
  Status take_children();
  Result<std::string> pass(const Header& header, std::string_view message, MonoTime deadline);
  Error failed(const Failure& failure);
  Header header(OperationKind kind, std::uint64_t size) const {
    return {kOperationMagic, kind, membership_.generation, operation_, size};
  }

  LinkHub& hub_;
  Clock& clock_;
  const Membership membership_;
  Device& device_;
  const Links links_;
  std::unique_ptr<DeviceReducer> reducer_;  // null: the ring
  Duration verdict_limit_{};
  const std::unique_ptr<Condition> changed_;
  std::vector<std::byte> staging_;
  std::vector<std::int32_t> host_in_;  // only for devices whose memory the host cannot see
  std::vector<std::int32_t> host_out_;
  std::uint64_t operation_ = 0;
  bool by_tree_ = false;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> children_;  // from the first gather by the tree on
  std::optional<LinkFault> fault_;
};

Error TcpCommunicator::failed(const Failure& failure) {
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  const WorkerName& name = membership_.members[failure.rank].name;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = LinkFault{failure.rank, name, failure.error.what()};
  }
  return failure.error.in("link with " + to_string(name));
}

Status TcpCommunicator::all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out,
                                         HopSums* hops) {
  CHECK_EQ(in.count(), out.count());
  CHECK(in.type() == DType::kI32 && out.type() == DType::kI32);
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  if (hops != nullptr) *hops = {};
  if (size() == 1) {
    device_.copy(stream, out, in);
    return stream.synchronize();
  }
  if (reducer_) return add_on_device(stream, in, out);
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
  TRY_OK(ring(from, to, in.count(), hops));
  if (!staged) return ok();
  device_.copy_to_device(stream, out, to);
  return stream.synchronize();
}

Status TcpCommunicator::add_on_device(Stream& stream, ConstBuffer in, Buffer out) {
  const Status done = reducer_->all_reduce_int32(stream, in, out);
  if (done.ok() || done.error().code() == Code::kCancelled) return done;
  if (done.error().reason() == kDeviceLost) return done;  // no verdict helps
  LOG_WARNING("collective", "{}; waits for what the coordinator makes of it", done.error().what());
  std::unique_lock lock(mutex_);
  const MonoTime deadline = clock_.now() + verdict_limit_;
  if (changed_->wait_until(lock, deadline, [&] { return aborted_.load(); }))
    return Error(Code::kCancelled, "communicator was aborted");
  return done;
}

Status TcpCommunicator::ring(const std::int32_t* in, std::int32_t* out, std::int64_t count,
                             HopSums* hops) {
  const RingPlan plan(count, size(), rank());
  const Header here = header(OperationKind::kReduce, static_cast<std::uint64_t>(count));
  ++operation_;
  if (auto failure = ring_reduce(clock_, plan, here, next(), previous(), in, out, staging_, hops)) {
    return failed(*failure);
  }
  return ok();
}

Result<std::vector<std::string>> TcpCommunicator::gather(std::string_view mine, MonoTime deadline) {
  CHECK_LE(mine.size(), kGatherBytes);
  if (aborted_.load()) return Error(Code::kCancelled, "communicator was aborted");
  std::vector<std::string> all(size());
  all[rank()] = mine;
  TRY_OK(by_tree_ ? gather_by_tree(all, deadline) : gather_by_ring(all, deadline));
  return all;
}

// ---- Votes by the ring
// ---------------------------------------------------------------------------

// Sends `message` to the next member, receives one from the previous. The sockets' buffers hold a
// message whole, so sending first cannot lock the ring.
Result<std::string> TcpCommunicator::pass(const Header& header, std::string_view message,
                                          MonoTime deadline) {
  std::string frame(sizeof header, '\0');
  std::memcpy(frame.data(), &header, sizeof header);
  frame.append(message);
  if (auto sent = next().link->write_all(frame.data(), frame.size(), deadline); !sent.ok()) {
    return failed({next().rank, sent.error()});
  }
  Link& from = *previous().link;
  Header theirs;
  if (auto got = from.read_all(&theirs, sizeof theirs, deadline); !got.ok()) {
    return failed({previous().rank, got.error()});
  }
  Header expected = header;
  expected.size = theirs.size;
  if (theirs != expected || theirs.size > kGatherBytes) {
    return failed({previous().rank, Error(Code::kInternal, "peer is in another operation")});
  }
  std::string body(theirs.size, '\0');
  if (auto got = from.read_all(body.data(), body.size(), deadline); !got.ok()) {
    return failed({previous().rank, got.error()});
  }
  return body;
}

Status TcpCommunicator::gather_by_ring(std::vector<std::string>& all, MonoTime deadline) {
  for (std::uint32_t step = 0; step + 1 < size(); ++step) {
    const std::string& message = all[(rank() + size() - step) % size()];
    TRY(all[(rank() + size() - step - 1) % size()],
        pass(header(OperationKind::kGather, message.size()), message, deadline));
    ++operation_;
  }
  return ok();
}

// ---- Votes by the tree
// ---------------------------------------------------------------------------

// A child dials before its create() returns, and a gather by the ring has shown since that all have
// returned: its link is here.
Status TcpCommunicator::take_children() {
  const auto ranks = tree_children(rank(), size());
  while (children_.size() < ranks.size()) {
    const std::uint32_t child = ranks[children_.size()];
    auto link = hub_.await(membership_.members[child].name, membership_.generation, kTree,
                           clock_.now() + kChildLimit);
    if (!link.ok()) return failed({child, link.error()});
    const std::lock_guard lock(mutex_);
    children_.push_back(std::move(link).value());
    if (aborted_.load()) children_.back()->cut();
  }
  return ok();
}

Status TcpCommunicator::gather_by_tree(std::vector<std::string>& all, MonoTime deadline) {
  TRY_OK(take_children());
  const auto ranks = tree_children(rank(), size());
  std::vector<Neighbour> children;
  children.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    children.push_back({children_[i].get(), ranks[i]});
  }
  Neighbour parent;
  if (rank() != 0) parent = {links_.parent.get(), tree_parent(rank())};
  TreeGather tree(clock_, header(OperationKind::kGatherUp, 0),
                  header(OperationKind::kGatherDown, 0), rank(), parent, children, all);
  ++operation_;
  if (auto failure = tree.run(deadline)) return failed(*failure);
  return ok();
}

// ---- Links
// ---------------------------------------------------------------------------------------

namespace {

// As create() tells it: why a dial to a member failed.
Error not_reached(LinkHub& hub, std::uint64_t generation, Error error, const char* reason) {
  if (generation < hub.fenced_below()) return Error(Code::kExpired, "generation is fenced");
  const Code code = error.code();
  if (code == Code::kTimeout || code == Code::kUnavailable) error.set_reason(reason);
  return error;
}

// Dials the next member and the parent at once.
Result<TcpCommunicator::Links> dial_out(LinkHub& hub, const Membership& membership,
                                        MonoTime deadline, std::stop_source& cancel) {
  const std::uint64_t generation = membership.generation;
  const MonoTime reach = std::min<MonoTime>(deadline, hub.executor().now() + kReachLimit);
  const auto dial = [&](std::uint32_t rank, const char* purpose) {
    return hub.dial(membership.members[rank], generation, purpose, reach, cancel.get_token());
  };
  const bool has_parent = membership.rank != 0 && membership.size() >= kTreeMembers;
  Result<std::unique_ptr<Link>> parent = std::unique_ptr<Link>();
  Task climbing;
  if (has_parent) {
    TRY(climbing, hub.executor().try_spawn("tree-link", [&](const std::stop_token&) {
      parent = dial(tree_parent(membership.rank), kTree);
    }));
  }
  auto next = dial((membership.rank + 1) % membership.size(), kRing);
  if (!next.ok()) cancel.request_stop();
  climbing.join();
  if (!next.ok()) return not_reached(hub, generation, next.error(), kNextUnreachable);
  if (!parent.ok()) return not_reached(hub, generation, parent.error(), kParentUnreachable);
  TcpCommunicator::Links links;
  links.next = std::move(next).value();
  links.parent = std::move(parent).value();
  return links;
}
}  // namespace

// Stands in the list of what a fence ends for as long as it lives.
class TcpCommunicatorFactory::Pending {
 public:
  Pending(TcpCommunicatorFactory& factory, std::uint64_t generation)
      : factory_(factory), generation_(generation) {
    const std::lock_guard lock(factory_.mutex_);
    factory_.pending_.push_back(this);
  }
  ~Pending() {
    const std::lock_guard lock(factory_.mutex_);
    factory_.pending_.remove(this);
  }
  Pending(const Pending&) = delete;
  std::stop_source& cancel() { return cancel_; }
  // With the factory's mutex held.
  void fence(std::uint64_t below) {
    if (generation_ < below) cancel_.request_stop();
  }

 private:
  TcpCommunicatorFactory& factory_;
  const std::uint64_t generation_;
  std::stop_source cancel_;
};

Result<std::unique_ptr<Communicator>> TcpCommunicatorFactory::create(const Membership& membership,
                                                                     MonoTime deadline) {
  CHECK_LT(membership.rank, membership.size());
  if (membership.generation < hub_.fenced_below()) {
    return Error(Code::kExpired, "generation is fenced");
  }
  Pending pending(*this, membership.generation);
  TcpCommunicator::Links links;
  if (membership.size() > 1) {
    const std::uint32_t size = membership.size();
    TRY(links, dial_out(hub_, membership, deadline, pending.cancel()));
    const Peer& from = membership.members[(membership.rank + size - 1) % size];
    TRY(links.previous, hub_.await(from.name, membership.generation, kRing, deadline));
  }
  auto made = std::make_unique<TcpCommunicator>(hub_, membership, device_, std::move(links));
  if (membership.size() > 1 && collectives_ != nullptr && !membership.collective.empty() &&
      membership.collective == collectives_->name()) {
    const std::stop_callback freed(pending.cancel().get_token(), [&] { made->abort(); });
    connect_device(*made, pending.cancel().get_token(), deadline);
    if (pending.cancel().stop_requested()) return Error(Code::kExpired, "generation is fenced");
  }
  return std::unique_ptr<Communicator>(std::move(made));
}

// A gather that fails here leaves a communicator whose first operation fails, and tells the same.
void TcpCommunicatorFactory::connect_device(TcpCommunicator& communicator,
                                            const std::stop_token& stop, MonoTime deadline) {
  const std::uint32_t rank = communicator.rank();
  Result<std::string> id = std::string();
  if (rank == 0) id = collectives_->make_id();
  const auto ids = communicator.gather(id.value_or(""), deadline);
  if (!ids.ok()) return;
  Result<std::unique_ptr<DeviceReducer>> reducer = std::unique_ptr<DeviceReducer>();
  if (id.ok() && !ids->front().empty()) {
    // There must be time to tell the others.
    const MonoTime now = hub_.executor().now();
    const Duration limit =
        std::min<Duration>(connect_limit(communicator.size()), (deadline - now) / 2);
    reducer = collectives_->connect(hub_.executor(), {ids->front(), rank, communicator.size()},
                                    now + limit, stop);
  }
  const bool is_connected = reducer.ok() && *reducer != nullptr;
  const auto outcomes = communicator.gather(is_connected ? kConnected : "", deadline);
  const bool all_are = outcomes.ok() && std::ranges::count(*outcomes, kConnected) ==
                                            static_cast<std::ptrdiff_t>(communicator.size());
  note_connect(all_are);
  if (!outcomes.ok()) return;
  if (!id.ok()) reducer = id.error();
  if (!reducer.ok()) {
    LOG_WARNING("collective", "generation {} adds over its links: {}", communicator.generation(),
                reducer.error().what());
  } else if (all_are) {
    LOG_INFO("collective", "generation {} adds by {}", communicator.generation(),
             collectives_->name());
    communicator.use(std::move(reducer).value(), verdict_limit_);
  } else {
    LOG_WARNING("collective", "generation {} adds over its links: {} is not connected everywhere",
                communicator.generation(), collectives_->name());
  }
}

void TcpCommunicatorFactory::note_connect(bool is_connected) {
  const std::lock_guard lock(mutex_);
  if (is_connected) {
    connects_failed_ = 0;
    return;
  }
  offers_from_ = hub_.executor().now() + kOffersAgain * (1 << connects_failed_);
  connects_failed_ = std::min(connects_failed_ + 1, kOffersAgainDoublings);
}

void TcpCommunicatorFactory::note_wrong_sums() { note_connect(false); }

std::string TcpCommunicatorFactory::collective() const {
  const std::lock_guard lock(mutex_);
  const bool is_offered = collectives_ != nullptr && hub_.executor().now() >= offers_from_;
  return is_offered ? collectives_->name() : "";
}

void TcpCommunicatorFactory::fence(std::uint64_t below) {
  hub_.fence(below);
  const std::lock_guard lock(mutex_);
  for (Pending* pending : pending_) pending->fence(below);
}

}  // namespace rubato::worker
