#include "worker/script/script_process.h"

#include "common/log.h"
#include "worker/protocol/wire.pb.h"
#include "worker/script/launch.h"
#include "worker/script/progress.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {
namespace {

constexpr std::size_t kErrorFileMost = 1 << 16;  // of its beginning, which has the message

// Its last `most` bytes.
std::string end_of(const std::string& path, std::size_t most) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(in.tellg(), 0));
  const std::size_t length = std::min(size, most);
  std::string text(length, '\0');
  in.seekg(static_cast<std::streamoff>(size - length));
  in.read(text.data(), static_cast<std::streamsize>(length));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

// Its first `most` bytes.
std::string beginning_of(const std::string& path, std::size_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

}  // namespace

struct ScriptProcess::Impl {
  explicit Impl(ScriptParts p, MonoTime now) : parts(std::move(p)), said_at(now) {
    standing.mutable_id()->set_pod_uid(parts.pod_uid);
    standing.mutable_id()->set_slot(parts.slot);
    standing.mutable_id()->set_incarnation(parts.incarnation);
    standing.set_phase(wire::WORKER_STARTING);
    standing.set_phase_name("start");
    standing.set_looked(1);
    renew_port();
    say(now);
  }

  void say(MonoTime now) {
    wire::WorkerEvent event;
    *event.mutable_standing() = standing;
    parts.send(event.SerializeAsString());
    said_at = now;
  }

  void enter(wire::WorkerPhase phase, const char* name) {
    standing.set_phase(phase);
    standing.set_phase_name(name);
  }

  void fail(MonoTime now, const std::string& reason, const std::string& message, bool for_good) {
    wire::WorkerEvent event;
    *event.mutable_standing() = standing;
    wire::Failure& failure = *event.mutable_failure();
    failure.set_reason(reason);
    failure.set_message(message);
    failure.set_permanent(for_good);
    failure.set_scope(for_good ? wire::FAILURE_SCOPE_WORKER : wire::FAILURE_SCOPE_ATTEMPT);
    parts.send(event.SerializeAsString());
    said_at = now;
  }

  // Of each generation another: nobody who dials an old one is answered by a new one.
  void renew_port() {
    auto held = parts.hold_port();
    if (!held.ok()) {
      LOG_WARNING("script", "{}", held.error().to_string());
      return;
    }
    port = std::move(held).value();
    standing.mutable_listen()->set_host(parts.host);
    standing.mutable_listen()->set_port(port.number());
  }

  void configure(MonoTime now) {
    if (standing.phase() != wire::WORKER_STARTING) return say(now);
    if (!parts.problem.empty()) return fail(now, "InvalidCommand", parts.problem, true);
    auto found = program_of(parts.command);
    if (!found.ok()) return fail(now, "InvalidCommand", found.error().what(), true);
    program = std::move(found).value();
    if (!program.left_out.empty())
      LOG_INFO("script", "options of torchrun that change nothing here: {}",
               fmt::join(program.left_out, " "));
    enter(wire::WORKER_READY, "ready");
    say(now);
  }

  void end_program(MonoTime now, Duration limit) {
    if (!kill_at) parts.program.signal(SIGTERM);
    kill_at = std::min(kill_at.value_or(MonoTime::max()), now + limit);
  }

  void abort(MonoTime now, std::uint64_t below) {
    aborted_below = std::max(aborted_below, below);
    if (pending && pending->generation() < aborted_below) pending.reset();
    if (standing.generation() >= aborted_below) return say(now);
    if (runs) return end_program(now, parts.end_limit);
    settle(now);
  }

  // Nothing below it can change any more.
  void settle(MonoTime now) {
    const bool was_member = standing.generation() > 0;
    if (was_member) enter(wire::WORKER_ABORTED, "aborted");
    if (standing.fenced_below() < aborted_below) renew_port();
    standing.set_fenced_below(std::max(standing.fenced_below(), aborted_below));
    say(now);
  }

  void form(MonoTime now, const wire::Form& told) {
    const std::uint64_t least =
        std::max({standing.generation() + 1, standing.fenced_below(), aborted_below});
    const bool is_unknown = told.members_of() != 0 || told.mode() == wire::FORM_PLANNED;
    if (standing.phase() == wire::WORKER_STARTING || retires || is_unknown ||
        told.generation() < least)
      return say(now);
    if (runs) {
      pending = told;
      return end_program(now, parts.end_limit);
    }
    take_up(now, told);
  }

  void take_up(MonoTime now, const wire::Form& told) {
    pending.reset();
    stops = false;
    const auto place = place_of(told, standing.id());
    if (!place.ok()) return;
    standing.set_generation(told.generation());
    standing.set_seq(0);
    if (told.parked()) {
      enter(wire::WORKER_PARKED, "parked");
      return say(now);
    }
    std::error_code ignored;
    for (const std::string& file : {parts.error_file, parts.progress_file})
      std::filesystem::remove(file, ignored);
    counted.reset();
    if (place->rank == 0) port = HeldPort();
    variables = environment_of(*place, told,
                               {.job_uid = parts.job_uid,
                                .role = program.role,
                                .restarts = told.generation() - 1,
                                .restarts_most = parts.restarts_most,
                                .error_file = parts.error_file,
                                .progress_file = parts.progress_file,
                                .sets_threads = parts.sets_threads,
                                .sets_nccl_errors = parts.sets_nccl_errors});
    words = words_of(program, place->local_rank);
    const Status started = parts.program.start(words, variables);
    LOG_INFO("script", "generation {}: rank {} of {}, program {}", told.generation(), place->rank,
             place->world, started.ok() ? "started" : "not started");
    runs = started.ok();
    runs_since = now;
    enter(wire::WORKER_TRAINING, "run");
    if (runs) return say(now);
    enter(wire::WORKER_ABORTED, "failed");
    fail(now, "ProgramFailed", started.error().what(), false);
  }

  void take_progress(MonoTime now) {
    const auto read = progress_of_file(end_of(parts.progress_file, kProgressTextMost));
    if (!read.ok() && !std::exchange(warned_of_progress, true))
      LOG_WARNING(
          "script",
          "the file of RUBATO_PROGRESS_FILE is not understood: {}; it is to be a JSON object "
          "of at most {} bytes, such as {{\"step\": 120, \"loss\": 2.31}}",
          read.error().what(), kProgressTextMost);
    const auto told = read.ok() ? *read : std::nullopt;
    if (!told || (counted && told->step == counted->step)) return;
    if (counted && told->step > counted->step && now > counted_at) {
      const std::chrono::duration<double> took = now - counted_at;
      standing.set_step_seconds(took.count() / static_cast<double>(told->step - counted->step));
    }
    counted = told;
    counted_at = now;
    standing.set_step(told->step);
    standing.set_tokens(told->tokens);
    standing.set_loss(told->loss);
    standing.set_seq(standing.seq() + 1);
  }

  void stop(MonoTime now) {
    stops = true;
    if (runs) return end_program(now, parts.stop_limit);
    enter(wire::WORKER_STOPPED, "stopped");
    say(now);
  }

  void retire(MonoTime now) {
    retires = true;
    pending.reset();
    if (runs) end_program(now, kRetireLimit);
  }

  void on_end(MonoTime now, const ProgramEnd& end) {
    runs = false;
    take_progress(now);
    const bool was_told = std::exchange(kill_at, std::nullopt).has_value();
    LOG_INFO("script", "generation {}: the program {}", standing.generation(), to_text(end));
    if (retires) return;
    if (standing.generation() < aborted_below) {
      settle(now);
    } else if (stops) {
      enter(wire::WORKER_STOPPED, "stopped");
      say(now);
    } else if (!was_told && end.exit_code == 0 && end.signal == 0) {
      standing.set_seq(standing.seq() + 1);
      enter(wire::WORKER_FINISHED, "finished");
      say(now);
    } else if (!was_told) {
      enter(wire::WORKER_ABORTED, "failed");
      const std::string told =
          message_of_error_file(beginning_of(parts.error_file, kErrorFileMost), kFailureTextMost);
      fail(now, "ProgramFailed",
           fmt::format("the program {}{}{}", to_text(end), told.empty() ? "" : ": ", told), false);
    }
    if (pending) take_up(now, wire::Form(*pending));
  }

  ScriptParts parts;
  wire::WorkerStanding standing;
  RankProgram program;
  // Of the newest start:
  std::vector<std::string> words;
  std::map<std::string, std::string> variables;
  HeldPort port;
  bool runs = false;
  bool stops = false;
  bool retires = false;
  MonoTime runs_since{};
  MonoTime said_at{};
  std::optional<MonoTime> kill_at;  // it was told to end
  std::uint64_t aborted_below = 0;  // answered once the program is gone
  std::optional<wire::Form> pending;
  std::optional<ToldProgress> counted;
  MonoTime counted_at{};
  bool warned_of_progress = false;
};

ScriptProcess::ScriptProcess(ScriptParts parts, MonoTime now)
    : impl_(std::make_unique<Impl>(std::move(parts), now)) {}
ScriptProcess::~ScriptProcess() = default;

void ScriptProcess::command(MonoTime now, const std::string& body) {
  wire::WorkerCommand command;
  if (!command.ParseFromString(body)) return;
  Impl& impl = *impl_;
  switch (command.body_case()) {
    case wire::WorkerCommand::kConfigure:
      return impl.configure(now);
    case wire::WorkerCommand::kAbort:
      return impl.abort(now, command.abort().below());
    case wire::WorkerCommand::kForm:
      return impl.form(now, command.form());
    case wire::WorkerCommand::kRequest:
      if (command.request().stop()) impl.stop(now);
      return;
    case wire::WorkerCommand::kRetire:
      return impl.retire(now);
    case wire::WorkerCommand::kLook:
      impl.standing.set_looked(command.look().number());
      return impl.say(now);
    case wire::WorkerCommand::kProbe: {  // its program has links; it has none
      wire::WorkerEvent event;
      *event.mutable_standing() = impl.standing;
      event.mutable_reach()->set_generation(command.probe().generation());
      for (const wire::Member& member : command.probe().members())
        *event.mutable_reach()->add_reached() = member.id();
      return impl.parts.send(event.SerializeAsString());
    }
    case wire::WorkerCommand::kFollow:
    case wire::WorkerCommand::BODY_NOT_SET:
      return;
  }
}

void ScriptProcess::tick(MonoTime now) {
  Impl& impl = *impl_;
  if (!impl.runs) return;
  if (const auto end = impl.parts.program.take_end()) return impl.on_end(now, *end);
  if (impl.kill_at && now >= *impl.kill_at) impl.parts.program.signal(SIGKILL);
  const bool has_settled = impl.standing.seq() == 0 && now - impl.runs_since >= kRunsAfter;
  if (has_settled) impl.standing.set_seq(1);
  if (!has_settled && now - impl.said_at < kStandingPause) return;
  impl.take_progress(now);
  if (impl.parts.has_spares && !impl.kill_at && now - impl.runs_since >= kSpareAfter)
    impl.parts.program.prepare(now, impl.words, impl.variables);
  impl.standing.set_micro_done(impl.standing.micro_done() + 1);
  impl.say(now);
}

bool ScriptProcess::is_over() const { return impl_->retires && !impl_->runs; }

}  // namespace rubato::worker
