#include "worker/step/state_server.h"

#include "common/log.h"
#include "worker/backend/digest.h"

#include <algorithm>
#include <span>
#include <utility>

namespace rubato::worker {

namespace {
// No slower than this, after a grace: a follower that hangs must not hold a snapshot for ever.
constexpr double kSlowestBytesPerSecond = 4e6;
}  // namespace

MonoTime StateServer::limit_for(std::size_t bytes) const {
  const std::chrono::duration<double> seconds(30 +
                                              static_cast<double>(bytes) / kSlowestBytesPerSecond);
  return executor_.now() + std::chrono::duration_cast<Duration>(seconds);
}

Status StateServer::send_pieces(Link& link, std::span<const std::byte> bytes,
                                Digest& digest) const {
  for (std::size_t first = 0; first < bytes.size(); first += kStatePieceBytes) {
    const auto piece = bytes.subspan(first, std::min(kStatePieceBytes, bytes.size() - first));
    digest.add(piece.data(), piece.size());
    TRY_OK(link.write_all(piece.data(), piece.size(), limit_for(piece.size())));
  }
  return ok();
}

StateServer::StateServer(Executor& executor, std::function<void()> wake)
    : executor_(executor), wake_(std::move(wake)), changed_(executor.make_condition()) {}

StateServer::~StateServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (Session& session : sessions_) session.link->cut();
  }
  changed_->notify_all();
  for (Session& session : sessions_) session.task.join();
}

void StateServer::accept(std::unique_ptr<Link> link, const WorkerName& from,
                         std::uint64_t generation) {
  {
    std::unique_lock lock(mutex_);
    reap();
    if (stop_) return;
    if (sessions_.size() >= kFollowersMax) {
      lock.unlock();
      LOG_INFO("state", "is busy for follower {}: {} are served", to_string(from), kFollowersMax);
      return send_busy(*link);
    }
    Session& session = sessions_.emplace_back();
    session.link = std::move(link);
    session.from = from;
    session.generation = generation;
    auto task =
        executor_.try_spawn("state", [this, &session](const std::stop_token&) { serve(session); });
    if (!task.ok()) {
      const auto refused = std::move(session.link);
      sessions_.pop_back();
      lock.unlock();
      LOG_WARNING("state", "is busy for follower {}: {}", to_string(from), task.error().what());
      return send_busy(*refused);
    }
    session.task = std::move(task).value();
  }
  wake_();
}

void StateServer::reap() {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    if (!it->is_done) {
      ++it;
      continue;
    }
    it->task.join();
    it = sessions_.erase(it);
  }
}

bool StateServer::wants_snapshot() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(sessions_,
                             [](const Session& s) { return !s.is_done && s.wants_snapshot; });
}

bool StateServer::has_followers() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(sessions_, [](const Session& s) { return !s.is_done && s.is_live; });
}

bool StateServer::is_level(const std::vector<Peer>& members) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(sessions_, [&](const Session& session) {
    return !session.is_done && session.is_behind &&
           std::ranges::find(members, session.from, &Peer::name) != members.end();
  });
}

void StateServer::give(std::shared_ptr<const StateImage> image) {
  const std::lock_guard lock(mutex_);
  for (Session& session : sessions_) {
    if (session.is_done || !session.wants_snapshot) continue;
    session.wants_snapshot = false;
    session.is_live = true;
    session.image = image;
    ++session.snapshots;
  }
  changed_->notify_all();
}

void StateServer::refuse() {
  const std::lock_guard lock(mutex_);
  for (Session& session : sessions_) {
    if (session.is_done || !session.wants_snapshot) continue;
    session.wants_snapshot = false;
    session.is_refused = true;
  }
  changed_->notify_all();
}

std::shared_ptr<DecidedRound> StateServer::blank_round() {
  const std::lock_guard lock(mutex_);  // followers let go of theirs under it
  const auto is_free = [](const auto& round) { return round.use_count() == 1; };
  const auto spare = std::ranges::find_if(rounds_, is_free);
  if (spare != rounds_.end()) return *spare;
  return rounds_.emplace_back(std::make_shared<DecidedRound>());
}

void StateServer::push(std::shared_ptr<const DecidedRound> round) {
  const std::lock_guard lock(mutex_);
  for (Session& session : sessions_) {
    if (session.is_done || !session.is_live) continue;
    const bool full = session.log.size() >= kFollowLogRounds &&
                      session.log_bytes + round->bytes() > kFollowLogBytes;
    if (full) {  // too slow for us: start over from a fresh snapshot
      session.log.clear();
      session.log_bytes = 0;
      session.image.reset();
      session.is_live = false;
      session.wants_snapshot = session.snapshots < kSnapshotsPerFollower;
      if (!session.wants_snapshot) session.link->cut();
      continue;
    }
    session.is_behind = true;
    session.log.push_back(round);
    session.log_bytes += round->bytes();
  }
  if (is_alone()) rounds_.clear();  // the last one ended meanwhile
  changed_->notify_all();
}

void StateServer::fence(std::uint64_t below) {
  const std::lock_guard lock(mutex_);
  for (Session& session : sessions_) {
    if (session.generation < below) session.link->cut();
  }
  changed_->notify_all();
}

void StateServer::serve(Session& session) {
  std::unique_lock lock(mutex_);
  while (!stop_ && !session.link->is_cut()) {
    const Status sent = send_next(session, lock);
    if (sent.ok()) continue;
    LOG_INFO("state", "follower {}: {}", to_string(session.from), sent.error().what());
    session.link->cut();
  }
  session.image.reset();
  session.log.clear();
  session.is_done = true;
  const auto unused = is_alone() ? std::exchange(rounds_, {}) : decltype(rounds_){};
  lock.unlock();  // `unused` is freed without it
}

bool StateServer::is_alone() const { return std::ranges::all_of(sessions_, &Session::is_done); }

// One frame, without the lock while it is sent.
Status StateServer::send_next(Session& session, std::unique_lock<std::mutex>& lock) {
  const auto has_news = [&] { return session.image || !session.log.empty() || session.is_refused; };
  const bool is_told = !session.is_live || !session.is_behind;
  changed_->wait_until(lock, executor_.now() + (is_told ? kStateBeat : 0ms),
                       [&] { return stop_ || session.link->is_cut() || has_news(); });
  if (stop_ || session.link->is_cut()) return ok();
  Link& link = *session.link;
  if (!has_news()) {
    if (session.is_live) session.is_behind = false;
    lock.unlock();
    wire::StateFrame frame;
    frame.set_alive(seq_.load());
    const Status sent = link.send_frame(frame.SerializeAsString(), limit_for(0));
    lock.lock();
    return sent;
  }
  if (session.is_refused) {
    lock.unlock();
    send_busy(link);
    lock.lock();
    return Error(Code::kExhausted, "there is no copy of the state for it");
  }
  if (session.image) {
    const auto image = std::exchange(session.image, nullptr);
    lock.unlock();
    const Status sent = send_image(link, *image);
    lock.lock();
    return sent;
  }
  const auto round = session.log.front();
  session.log.pop_front();
  session.log_bytes -= round->bytes();
  lock.unlock();
  const Status sent = send_round(link, *round);
  lock.lock();
  return sent;
}

void StateServer::send_busy(Link& link) const {
  wire::StateFrame frame;
  frame.mutable_busy();
  (void)link.send_frame(frame.SerializeAsString(), executor_.now() + kBusyAnswerLimit);
}

Status StateServer::send_image(Link& link, const StateImage& image) const {
  wire::StateFrame frame;
  *frame.mutable_snapshot() = image.head;
  TRY_OK(link.send_frame(frame.SerializeAsString(), limit_for(0)));
  Digest digest;
  TRY(const auto sections, image.snapshot->sections());
  for (const auto& section : sections) TRY_OK(send_pieces(link, section, digest));
  TRY_OK(send_pieces(link, std::as_bytes(std::span(*image.records)), digest));
  frame.mutable_tail()->set_digest(digest.value());
  return link.send_frame(frame.SerializeAsString(), limit_for(0));
}

Status StateServer::send_round(Link& link, const DecidedRound& round) const {
  wire::StateFrame frame;
  *frame.mutable_round()->mutable_record() = round.record;
  frame.mutable_round()->set_reduced_bytes(round.bytes());
  TRY_OK(link.send_frame(frame.SerializeAsString(), limit_for(0)));
  return link.write_all(round.reduced.data(), round.bytes(), limit_for(round.bytes()));
}

}  // namespace rubato::worker
