// The follower's side of a planned join: a snapshot, then every decided round.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/step/engine.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace rubato::worker {

namespace {
constexpr auto kDonorDial = 10s;        // a donor that answers later is one that was told anew
constexpr auto kDonorSilence = 60s;     // alive frames come twice a second
constexpr auto kPullBeat = 10s;         // while bytes come, the coordinator sees that it lives
constexpr Duration kBusyPause = 200ms;  // after a first donor that is busy; doubled each time
constexpr Duration kBusyPauseMost = 5s;
constexpr std::size_t kPieceRecords = kStatePieceBytes / sizeof(StepRecord);
static_assert(kStatePieceBytes % sizeof(StepRecord) == 0);

// Reads into a buffer of the device, in the pieces that a digest is made of; `on_piece` is called
// after each.
Status read_section(Clock& clock, Link& link, Device& device, Stream& stream, Buffer to,
                    Digest* digest, const std::function<void()>& on_piece) {
  std::vector<std::byte> staging(kStatePieceBytes);
  auto* host = static_cast<std::byte*>(device.host_view(to));
  const auto element = static_cast<std::int64_t>(size_of(to.type()));
  for (std::size_t first = 0; first < to.bytes(); first += kStatePieceBytes) {
    const std::size_t bytes = std::min(kStatePieceBytes, to.bytes() - first);
    std::byte* at = host != nullptr ? host + first : staging.data();
    TRY_OK(link.read_all(at, bytes, clock.now() + kDonorSilence));
    on_piece();
    if (digest != nullptr) digest->add(at, bytes);
    if (host != nullptr) continue;
    const Buffer piece = to.slice(static_cast<std::int64_t>(first) / element,
                                  static_cast<std::int64_t>(bytes) / element);
    device.copy_to_device(stream, piece, staging.data());
    TRY_OK(stream.synchronize());
  }
  return ok();
}

Result<wire::StateFrame> read_frame(Clock& clock, Link& link) {
  TRY(const std::string body, link.receive_frame(clock.now() + kDonorSilence));
  wire::StateFrame frame;
  if (!frame.ParseFromString(body)) return Error(Code::kInternal, "a frame cannot be read");
  return frame;
}
}  // namespace

void StepEngine::Impl::follow(const wire::Follow& order) {
  {
    const std::lock_guard lock(mutex);
    if (order.generation() < standing.fenced_below() || order.generation() <= standing.generation())
      return;
    frozen = false;
    standing.set_phase(wire::WORKER_FOLLOWING);
    standing.set_has_state(false);
    standing.set_reduced(false);
    standing.clear_held();
    standing.clear_last();
    standing.set_following(order.generation());
    standing.set_caught_up(false);
    follow_cancel.emplace();
    followed = order;
    communicator.reset();
  }
  follow_begun = pull_noted = now();
  follow_bytes = 0;
  set_phase_name("pull");
  emit({});
  const Status done = follow_donor(order);
  const bool is_busy = !done.ok() && done.error().code() == Code::kExhausted;
  busy_answers = is_busy ? busy_answers + 1 : 0;
  if (is_busy) pause_for_busy();
  bool has_state = false;
  bool is_expected = false;
  {
    const std::lock_guard lock(mutex);
    is_expected = follow_cancel->stop_requested();
    follow_cancel.reset();
    standing.clear_following();
    standing.clear_caught_up();
    has_state = standing.has_state();
  }
  if (done.ok()) return train();  // switched: a member now
  // Cut off. What was pulled in full stays true, and may do as it is for a recovery.
  {
    const std::lock_guard lock(mutex);
    standing.set_phase(has_state ? wire::WORKER_ABORTED : wire::WORKER_READY);
  }
  set_phase_name("cut off");
  if (done.error().reason() == kDeviceLost)
    return fail("StepFailed", done.error(), wire::FAILURE_SCOPE_ATTEMPT);
  if (is_expected || is_busy) return;  // the next order says whom to follow
  wire::WorkerEvent event;
  wire::Suspect& suspect = *event.mutable_suspect();
  suspect.set_generation(order.generation());
  *suspect.mutable_peer() = order.donor();
  suspect.set_why(done.error().what());
  LOG_WARNING("state", "donor {}: {}", to_string(to_name(order.donor())), done.error().to_string());
  emit(std::move(event));
}

void StepEngine::Impl::pause_for_busy() {
  Duration pause = kBusyPause;
  for (int i = 1; i < busy_answers && pause < kBusyPauseMost; ++i) pause *= 2;
  std::stop_token cancelled;
  {
    const std::lock_guard lock(mutex);
    cancelled = follow_cancel->get_token();
  }
  parts.executor.sleep_for(std::min(pause, kBusyPauseMost), cancelled);
}

// kExhausted: the donor is busy. Returns ok once a switch has made this worker a member. The link
// is closed by then: the donor need send no more.
Status StepEngine::Impl::follow_donor(const wire::Follow& order) {
  const Peer donor{to_name(order.donor()), order.donor_address().host(),
                   static_cast<std::uint16_t>(order.donor_address().port())};
  TRY(const auto link, parts.hub.dial(donor, order.generation(), "state", now() + kDonorDial,
                                      follow_cancel->get_token()));
  {
    const std::lock_guard lock(mutex);
    follow_connection = link.get();
    if (follow_cancel->stop_requested()) link->cut();
  }
  Status done = follow_link(*link, order);
  const std::lock_guard lock(mutex);
  follow_connection = nullptr;
  return done;
}

Status StepEngine::Impl::follow_link(Link& link, const wire::Follow& order) {
  for (;;) {
    TRY(const wire::StateFrame frame, read_frame(parts.executor.clock(), link));
    if (frame.has_snapshot()) {
      TRY_OK(take_snapshot(link, frame.snapshot()));
    } else if (frame.has_round()) {
      TRY_OK(take_round(link, frame.round()));
      if (begin_if_switched(frame.round().record())) return ok();
    } else if (frame.body_case() == wire::StateFrame::kAlive) {
      note_caught_up(order.generation(), frame.alive());
    } else if (frame.has_busy()) {
      return Error(Code::kExhausted, "the donor is busy");
    }
  }
}

// Judged by alive frames alone: rounds may have been decided while the bytes of another were read.
void StepEngine::Impl::note_caught_up(std::uint64_t generation, std::uint64_t donor_seq) {
  std::uint64_t seq = 0;
  {
    const std::lock_guard lock(mutex);
    seq = standing.seq();
    if (standing.caught_up() || !standing.has_state() || donor_seq > seq + 1) return;
    standing.set_caught_up(true);
  }
  wire::WorkerEvent event;
  wire::CaughtUp& news = *event.mutable_caught_up();
  news.set_generation(generation);
  news.set_seq(seq);
  news.set_seconds(std::chrono::duration<double>(now() - follow_begun).count());
  news.set_bytes(follow_bytes);
  LOG_INFO("state", "caught up at round {}: {} in {:.3f} s", seq, counted(follow_bytes, "byte"),
           news.seconds());
  emit(std::move(event));
}

void StepEngine::Impl::note_pulled() {
  if (now() < pull_noted + kPullBeat) return;
  pull_noted = now();
  const std::lock_guard lock(mutex);
  standing.set_micro_done(standing.micro_done() + 1);  // it lives
}

Status StepEngine::Impl::take_snapshot(Link& link, const wire::SnapshotHead& head) {
  parts.reach("pull", head.step());
  {
    const std::lock_guard lock(mutex);
    standing.set_has_state(false);
  }
  const std::vector<Buffer> sections = replica->sections();
  if (static_cast<int>(sections.size()) != head.section_bytes_size()) {
    return Error(Code::kInternal, "the donor's state has other sections");
  }
  if (head.records() != head.step())
    return Error(Code::kInternal, "the donor's records are not those of its steps");
  Digest digest;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i].bytes() != head.section_bytes(static_cast<int>(i))) {
      return Error(Code::kInternal, "the donor's state has other sizes");
    }
    TRY_OK(read_section(parts.executor.clock(), link, replica->device(), replica->stream(),
                        sections[i], &digest, [this] { note_pulled(); }));
    follow_bytes += sections[i].bytes();
  }
  std::vector<StepRecord> records;  // memory for those that have come, and no more
  while (records.size() < head.records()) {
    const std::size_t first = records.size();
    records.resize(first + std::min<std::size_t>(kPieceRecords, head.records() - first));
    const auto piece = std::as_writable_bytes(std::span(records).subspan(first));
    TRY_OK(link.read_all(piece.data(), piece.size(), now() + kDonorSilence));
    digest.add(piece.data(), piece.size());
  }
  TRY(const wire::StateFrame tail, read_frame(parts.executor.clock(), link));
  if (!tail.has_tail() || tail.tail().digest() != digest.value()) {
    return Error(Code::kInternal, "the state that came is not the state that was sent");
  }
  forget_checkpoints();
  const std::size_t known = history.size();
  if (!planted(Bug::kForgetRecords)) history = std::move(records);
  replica->set_step(head.step());
  redo_attempts = head.redo_attempts();
  wrong_sums = 0;
  last_non_finite.reset();
  if (head.has_last_non_finite()) last_non_finite = head.last_non_finite();
  non_finite_count = head.non_finite_count();
  noise = NoiseScale(head.noise_trace(), head.noise_signal());
  share.reset(head.seq());
  judged_seq.reset();
  replica->clear();
  server->set_seq(head.seq());
  if (known == 0) print_history();
  const std::lock_guard lock(mutex);
  standing.set_has_state(true);
  standing.set_seq(head.seq());
  standing.set_step(head.step());
  standing.set_tokens(head.step() * replica->tokens_per_step());
  if (head.has_last()) *standing.mutable_last() = head.last();
  if (is_ended()) job.stop_steps = head.step();
  if (!history.empty()) standing.set_loss(history.back().loss());
  standing.set_noise_scale(noise_in_tokens());
  return ok();
}

Status StepEngine::Impl::take_round(Link& link, const wire::RoundHead& head) {
  {
    const std::lock_guard lock(mutex);
    if (!standing.has_state() || head.record().seq() != standing.seq()) {
      return Error(Code::kInternal, "the donor skipped a round");
    }
  }
  judged_seq.reset();
  const Buffer reduced = replica->reduced();
  if (head.reduced_bytes() != 0) {
    if (head.reduced_bytes() != reduced.bytes()) {
      return Error(Code::kInternal, "the donor's gradient has another size");
    }
    TRY_OK(read_section(parts.executor.clock(), link, replica->device(), replica->stream(), reduced,
                        nullptr, [this] { note_pulled(); }));
    follow_bytes += reduced.bytes();
  }
  reach_aside("follow");
  if (!begin_commit()) return Error(Code::kCancelled, "aborted");
  Status done = decide(head.record());
  end_commit();
  if (!done.ok()) return done;
  if (head.record().outcome() == wire::OUTCOME_APPLY) print_replayed(history.back());
  return ok();
}

// True when the round made a generation begin that this worker belongs to.
bool StepEngine::Impl::begin_if_switched(const wire::CommitRecord& record) {
  if (record.switch_generation() == 0) return false;
  {
    const std::lock_guard lock(mutex);
    const auto is_it = [&](const wire::Form& form) {
      return form.generation() == record.switch_generation();
    };
    const bool is_known =
        (prepared && prepared->membership.generation == record.switch_generation()) ||
        std::ranges::any_of(planned, is_it) || forming_generation == record.switch_generation();
    if (!is_known) return false;  // a generation of others: go on following
  }
  Membership next;
  bool is_member = false;
  auto links = take_prepared(record.switch_generation(), next, is_member);
  if (!links) return false;
  const auto ranges = wire::even_share(next.rank, next.size(), replica->micro_batches());
  enter(next, std::move(links), {ranges});
  return true;
}

}  // namespace rubato::worker
