// StateServer: the donor's side of a planned join. A follower's link gets a snapshot that was
// copied between two rounds, streamed while training goes on, and then each decided round as it
// comes; an alive frame says that all there was is sent. What waits for a slow follower is bounded:
// beyond kFollowLogBytes it is forgotten and a fresh snapshot is sent instead, at most
// kSnapshotsPerFollower times; then the link is closed. At most kFollowersMax are served at once:
// one more, or one without a thread for it, is told that we are busy.
//
// Threads: one task per follower does all sending. Everything is thread-safe; the step thread calls
// give() and push() between rounds and is delayed by the copies alone.
#pragma once

#include "common/executor.h"
#include "worker/collective/link_hub.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/replica.h"

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace rubato::worker {

class Digest;

constexpr std::size_t kFollowersMax = 4;
constexpr auto kBusyAnswerLimit = 1s;
constexpr std::size_t kFollowLogBytes = std::size_t{1} << 30;  // or kFollowLogRounds, if larger
constexpr std::size_t kFollowLogRounds = 4;  // a snapshot is three times as large as a round
constexpr int kSnapshotsPerFollower = 5;
constexpr std::size_t kStatePieceBytes = std::size_t{1} << 20;
constexpr auto kStateBeat = 500ms;  // an alive frame when there is nothing else to send

// All replicated state between two rounds.
struct StateImage {
  wire::SnapshotHead head;
  std::shared_ptr<Snapshot> snapshot;
  std::shared_ptr<const std::vector<StepRecord>> records;
};
struct DecidedRound {
  wire::CommitRecord record;
  std::vector<std::int32_t> reduced;  // empty when the round changed nothing that needs it
  std::size_t bytes() const { return reduced.size() * sizeof(std::int32_t); }
};

class StateServer {
 public:
  // `wake` is called (from any thread) when a snapshot is wanted.
  StateServer(Executor& executor, std::function<void()> wake);
  ~StateServer();

  void accept(std::unique_ptr<Link> link, const WorkerName& from, std::uint64_t generation);
  bool wants_snapshot() const;
  bool has_followers() const;  // somebody needs push()
  // False while one of `members` follows and something is still to be sent to it.
  bool is_level(const std::vector<Peer>& members) const;
  void give(std::shared_ptr<const StateImage> image);
  // No image can be made: those that wait for one are told that we are busy, and cut off.
  void refuse();
  // To be filled and pushed: one that nobody waits for any more, where there is one. Fresh memory
  // would cost more than the copy.
  std::shared_ptr<DecidedRound> blank_round();
  void push(std::shared_ptr<const DecidedRound> round);
  void set_seq(std::uint64_t seq) { seq_.store(seq); }
  // Cuts links of generations below.
  void fence(std::uint64_t below);

 private:
  struct Session {
    std::unique_ptr<Link> link;
    WorkerName from;
    std::uint64_t generation = 0;
    bool wants_snapshot = true;
    bool is_live = false;   // has or gets an image: rounds are logged for it
    bool is_behind = true;  // has not been told since that all is sent
    bool is_refused = false;
    int snapshots = 0;
    std::shared_ptr<const StateImage> image;  // to send next
    std::deque<std::shared_ptr<const DecidedRound>> log;
    std::size_t log_bytes = 0;
    bool is_done = false;
    Task task;
  };
  void serve(Session& session);
  Status send_next(Session& session, std::unique_lock<std::mutex>& lock);
  Status send_image(Link& link, const StateImage& image) const;
  Status send_round(Link& link, const DecidedRound& round) const;
  void send_busy(Link& link) const;
  void reap();
  bool is_alone() const;  // nobody follows; with the mutex held

  MonoTime limit_for(std::size_t bytes) const;
  Status send_pieces(Link& link, std::span<const std::byte> bytes, Digest& digest) const;

  Executor& executor_;
  const std::function<void()> wake_;
  std::atomic<std::uint64_t> seq_{0};
  mutable std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::list<Session> sessions_;
  std::vector<std::shared_ptr<DecidedRound>> rounds_;  // kept while somebody follows
  bool stop_ = false;
};

}  // namespace rubato::worker
