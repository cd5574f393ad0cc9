#include "operator/control/job_figures.h"

#include "common/gpu_types.h"
#include "common/words.h"
#include "operator/control/job_history.h"
#include "operator/control/job_training.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace rubato::control {

namespace {

using coordinator::Phase;

constexpr std::size_t kPointsKept = 32;

class Figures {
 public:
  Figures(const JobFacts& facts, api::TrainingJobStatus& status)
      : facts_(facts), job_(*facts.job), status_(status) {}

  void put() {
    fix_decay();
    progress();
    gpu_time();
    rescales();
    preparation();
    planned_stall();
    restarts();
  }

 private:
  bool is(Phase phase) const { return facts_.view && facts_.view->phase == phase; }
  bool is_stepping() const { return is(Phase::kTraining) || is(Phase::kSwitching); }
  std::int32_t members() const {
    return facts_.view ? static_cast<std::int32_t>(facts_.view->members.size()) : 0;
  }
  // Whatever GPUs it was given: the fingerprint of its workers begins with the numerics' version
  // and the device.
  bool computes_on_cpu() const {
    const auto& membership = job_.status.membership;
    return membership && membership->fingerprint.find("-cpu/") != std::string::npos;
  }

  // With the first status that is ever written, thus before anything is allocated. A script has a
  // schedule of its own.
  void fix_decay() {
    if (status_.decay_steps || !job_.spec.training || job_.spec.runtime != api::Runtime::kBuiltin)
      return;
    status_.decay_steps =
        job_.spec.training->optimizer.schedule.decay_steps.value_or(job_.spec.training->stop.steps);
  }

  void progress() {
    const auto& training = job_.spec.training;
    const bool is_told = facts_.view && facts_.view->step > 0;  // by a program, which need not
    if (!training && !is_told) return;
    api::Progress progress = job_.status.progress.value_or(api::Progress{});
    if (!has_speed()) progress.estimated_remaining_seconds.reset();
    // A job that has ended stays as far as it came, whatever its spec says since.
    if (!api::is_finished(job_.status.conditions)) progress.steps = stop_steps();
    if (facts_.view && facts_.view->generation > 0) {
      const coordinator::View& view = *facts_.view;
      // A start from a checkpoint goes back; that is what happened, so that is what is shown.
      progress.step = static_cast<std::int64_t>(view.step);
      progress.tokens = static_cast<std::int64_t>(view.tokens);
      if (view.step > 0 && view.loss != 0) progress.loss = view.loss;
      if (view.validation_step > 0) progress.validation_loss = view.validation_loss;
      if (view.has_checkpoint)
        progress.checkpoint_step = static_cast<std::int64_t>(view.checkpoint_step);
      progress.recomputed_steps = static_cast<std::int64_t>(view.recomputed_steps);
      speed(view, progress);
    }
    if (progress.steps > 0) {
      progress.percentage =
          static_cast<std::int32_t>(100 * std::min(progress.step, progress.steps) / progress.steps);
    }
    status_.progress = progress;
  }

  // Or stands still for a moment only.
  bool has_speed() const {
    const bool has_ended = is(Phase::kFinished) || api::is_finished(job_.status.conditions);
    const auto& allocation = job_.status.allocation;
    return allocation && allocation->gpus > 0 && !has_ended && !is(Phase::kParked);
  }

  // Where training ends. A stop that is raised when the end is decided comes too late.
  std::int64_t stop_steps() const {
    if (!job_.spec.training) return 0;
    const bool is_done =
        facts_.view && facts_.view->end == Phase::kFinished && facts_.view->ended_at == 0;
    return is_done ? static_cast<std::int64_t>(facts_.view->step) : job_.spec.training->stop.steps;
  }

  void speed(const coordinator::View& view, api::Progress& progress) {
    if (view.step_seconds <= 0 || !is_stepping()) return;
    const double tokens_per_step = tokens_of_a_step(job_, static_cast<std::int64_t>(view.step),
                                                    static_cast<std::int64_t>(view.tokens));
    if (tokens_per_step <= 0) return;
    api::Performance performance = job_.status.performance.value_or(api::Performance{});
    performance.tokens_per_second = tokens_per_step / view.step_seconds;
    performance.mfu = utilisation(view, performance.tokens_per_second);
    if (view.noise_scale > 0) performance.gradient_noise_scale = std::round(view.noise_scale);
    remember_point(view, performance);
    status_.performance = performance;
    if (!job_.spec.training) return;
    progress.estimated_remaining_seconds = static_cast<std::int64_t>(
        static_cast<double>(std::max<std::int64_t>(progress.steps - progress.step, 0)) *
        view.step_seconds);
  }

  std::optional<double> utilisation(const coordinator::View& view, double tokens_per_second) const {
    const auto& training = job_.spec.training;
    if (computes_on_cpu() || !training || !training->model) return std::nullopt;
    double peak = 0;
    for (const auto& member : view.members) {
      const auto type = gpu_type(member.gpu_type);
      if (!type) return std::nullopt;
      peak += training->precision == api::Precision::kBf16 ? type->bf16_flops : type->f32_flops;
    }
    const auto model = api::explicit_model(*training->model);
    if (peak <= 0 || !model.ok()) return std::nullopt;
    return tokens_per_second * api::flops_per_token(*model, training->batch.sequence_length) / peak;
  }

  static double tenths(double seconds) { return std::round(seconds * 10) / 10; }
  static double thousandths(double value) { return std::round(value * 1000) / 1000; }

  static coordinator::GpuSeconds in_tenths(const coordinator::GpuSeconds& spent) {
    return {.useful = tenths(spent.useful),
            .queue = tenths(spent.queue),
            .rescale = tenths(spent.rescale),
            .failure = tenths(spent.failure),
            .checkpoint = tenths(spent.checkpoint),
            .straggling = tenths(spent.straggling)};
  }

  // The difference of two rounded sums is booked: what rounding leaves out of the one in the status
  // would be booked anew with each status.
  void gpu_time() {
    if (!facts_.gpu_seconds || facts_.gpu_seconds->held() <= 0) return;
    const coordinator::GpuSeconds spent = in_tenths(*facts_.gpu_seconds);
    book_by_type(spent.held() - gpu_seconds_of(job_.status).held());
    status_.useful_gpu_seconds = spent.useful;
    api::LostGpuSeconds lost;
    lost.queue = spent.queue;
    lost.rescale = spent.rescale;
    lost.failure = spent.failure;
    lost.checkpoint = spent.checkpoint;
    lost.straggling = spent.straggling;
    status_.lost_gpu_seconds = lost;
    api::Performance performance = status_.performance.value_or(api::Performance{});
    performance.goodput = thousandths(facts_.gpu_seconds->useful / facts_.gpu_seconds->held());
    status_.performance = performance;
  }

  // What was held since the last status, of the types that the allocation holds now. Pods that have
  // left it and go are of no type.
  void book_by_type(double seconds) {
    if (!job_.status.allocation || seconds <= 0) return;
    const auto& pods = job_.status.allocation->pods;
    double gpus = 0;
    for (const auto& pod : pods) gpus += pod.gpus;
    for (const auto& pod : pods) {
      auto& all = status_.gpu_seconds_by_type;
      auto found = std::ranges::find(all, pod.gpu_type, &api::TypeGpuSeconds::gpu_type);
      if (found == all.end()) found = all.insert(found, {.gpu_type = pod.gpu_type});
      found->seconds = found->seconds + seconds * pod.gpus / gpus;
    }
    for (auto& of_type : status_.gpu_seconds_by_type)
      of_type.seconds = thousandths(of_type.seconds);
  }

  // One measured point per (type, count): the latest. Only while nothing changes, and of steps that
  // these members have made.
  void remember_point(const coordinator::View& view, api::Performance& performance) const {
    if (!is(Phase::kTraining) || view.awaits_first_step || view.members.empty()) return;
    const std::string& type = view.members.front().gpu_type;
    for (const auto& member : view.members) {
      if (member.gpu_type != type) return;
    }
    const auto same = [&](const api::TypePerformance& point) {
      return point.gpu_type == type && point.gpus == members();
    };
    const auto found = std::find_if(performance.by_type.begin(), performance.by_type.end(), same);
    if (found != performance.by_type.end()) {
      found->tokens_per_second = performance.tokens_per_second;
    } else if (performance.by_type.size() < kPointsKept) {
      performance.by_type.push_back({type, members(), performance.tokens_per_second});
    }
  }

  // The last one may be of a leader that could not tell what it cost: it is counted only.
  void rescales() {
    if (!facts_.view) return;
    api::Rescales rescales = job_.status.rescales.value_or(api::Rescales{});
    const std::int64_t seen = rescales.last ? rescales.last->generation : 0;
    for (const coordinator::Change& change : facts_.view->changes) {
      const auto generation = static_cast<std::int64_t>(change.generation);
      if (generation > seen && is_rescale(change)) rescales.last = rescale_of(change);
    }
    rescales.count = std::max(rescales.count, static_cast<std::int64_t>(facts_.view->rescales));
    if (rescales.count > 0) status_.rescales = std::move(rescales);
  }

  // Of the last start or join, while its members are those that stand. Both ends are of the
  // leader's steady clock, so it says the same however often it is written.
  void preparation() {
    if (!facts_.view || !facts_.newest_pod_made || facts_.view->changes.empty()) return;
    const coordinator::Change& change = facts_.view->changes.back();
    const auto generation = static_cast<std::int64_t>(change.generation);
    api::Performance performance = status_.performance.value_or(api::Performance{});
    const bool is_start = change.kind == "start";
    if ((!is_start && change.kind != "join") || change.generation != facts_.view->generation ||
        generation <= performance.prepared_generation.value_or(0))
      return;
    const std::chrono::duration<double> since = change.formed_at - *facts_.newest_pod_made;
    const double took = tenths(std::max(since.count(), 0.0));
    (is_start ? performance.start_seconds : performance.join_seconds) = took;
    performance.prepared_generation = generation;
    status_.performance = performance;
  }

  // What a loss cost says nothing of what the next growth will.
  void planned_stall() {
    if (!facts_.view) return;
    for (const coordinator::Change& change : facts_.view->changes) {
      if (change.kind != "join" && change.kind != "leave") continue;
      if (!status_.performance) status_.performance.emplace();
      status_.performance->stall_seconds = change.stall_seconds;
    }
  }

  api::Rescale rescale_of(const coordinator::Change& change) const {
    const std::uint32_t micro_batches = change.salvaged + change.recomputed;
    api::Rescale rescale;
    rescale.reason = fmt::format(
        "{}: {}{}", change.kind, change.reason,
        micro_batches == 0
            ? ""
            : "; " + counted_of(change.salvaged, micro_batches, "micro-batch") + " kept");
    rescale.generation = static_cast<std::int64_t>(change.generation);
    rescale.from = static_cast<std::int32_t>(change.from);
    rescale.to = static_cast<std::int32_t>(change.to);
    rescale.stall_seconds = change.stall_seconds;
    rescale.time = facts_.now;
    return rescale;
  }

  void restarts() {
    const auto& allocation = job_.status.allocation;
    api::Restarts restarts;
    restarts.count = static_cast<std::int32_t>(facts_.own_failures);
    if (allocation)
      restarts.infrastructure = static_cast<std::int32_t>(allocation->lost_pods.value_or(0));
    if (restarts.count > 0 || restarts.infrastructure > 0) status_.restarts = restarts;
  }

  const JobFacts& facts_;
  const api::TrainingJob& job_;
  api::TrainingJobStatus& status_;
};

}  // namespace

void put_figures(const JobFacts& facts, api::TrainingJobStatus& status) {
  Figures(facts, status).put();
}

}  // namespace rubato::control
