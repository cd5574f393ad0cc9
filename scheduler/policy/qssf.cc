#include "scheduler/policy/qssf.h"

#include "scheduler/policy/order.h"

#include <map>
#include <string_view>
#include <utility>

namespace rubato::sched {
namespace {

std::string_view stem_of(const Job& job) {
  const std::string_view name = job.name;
  return name.substr(0, name.rfind('-'));
}

class Mean {
 public:
  void add(TimeMs value) {
    sum_ += static_cast<double>(value);
    ++many_;
  }
  double value() const { return many_ > 0 ? sum_ / many_ : 0; }

 private:
  double sum_ = 0;
  double many_ = 0;
};

// The known durations.
class History {
 public:
  explicit History(const Problem& problem) {
    for (const Job& job : problem.state().jobs) {
      if (!job.duration_ms) continue;
      by_name_[{job.queue, stem_of(job)}].add(*job.duration_ms);
      by_queue_[{job.queue, job.min}].add(*job.duration_ms);
      by_gpus_[job.min].add(*job.duration_ms);
      all_.add(*job.duration_ms);
    }
  }

  double predicted_ms(const Job& job) const {
    if (job.duration_ms) return static_cast<double>(*job.duration_ms);
    std::optional<double> found = look_up(by_name_, {job.queue, stem_of(job)});
    if (!found) found = look_up(by_queue_, {job.queue, job.min});
    if (!found) found = look_up(by_gpus_, job.min);
    return found.value_or(all_.value());
  }

 private:
  template <class Key>
  static std::optional<double> look_up(const std::map<Key, Mean>& means, const Key& key) {
    const auto found = means.find(key);
    if (found == means.end()) return std::nullopt;
    return found->second.value();
  }

  std::map<std::pair<std::string_view, std::string_view>, Mean> by_name_;
  std::map<std::pair<std::string_view, Gpus>, Mean> by_queue_;
  std::map<Gpus, Mean> by_gpus_;
  Mean all_;
};

}  // namespace

Descriptor Qssf::describe() {
  return {.name = "qssf",
          .about = "least predicted GPU time first; the first that does not fit holds up the rest",
          .rule =
              "The job with the least predicted GPU time (duration times the GPUs of its minimum) "
              "goes first. The first that does not fit holds up all behind it, and nobody is "
              "preempted. A duration that is not known is predicted from like jobs that are there: "
              "those of its queue with the same name up to the last \"-\", else those of its queue "
              "with as many GPUs, else all with as many GPUs, else all.",
          .choose =
              "Where nothing may be preempted, jobs come again and again under like names, and "
              "short or small ones should not wait behind long or large ones. Long jobs may "
              "starve. It predicts only from jobs that have not ended.",
          .source =
              "Hu et al., SC'21 (Helios). *Reconstruction*: durations that are known stand for the "
              "output of its predictor, without the gradient-boosted trees; its published results "
              "are *unverified* here",
          .knows = Knows::kDuration};
}

Targets Qssf::decide(const Problem& problem) const {
  const History history(problem);
  return {.order = order_by(problem,
                            [&](JobIndex j) {
                              const Job& job = problem.job(j);
                              return history.predicted_ms(job) * static_cast<double>(job.min);
                            }),
          .displaces = Displaces::kNobody,
          .head_blocks = true};
}

}  // namespace rubato::sched
