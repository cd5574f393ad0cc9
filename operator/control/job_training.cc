#include "operator/control/job_training.h"

#include "operator/api/codec.h"

#include <algorithm>
#include <array>

namespace rubato::control {

namespace {

using json::Value;

// Of a spec, all that a Wish says.
constexpr std::array kToldMembers{"runtime", "gpus", "training", "gracePeriodSeconds"};

// The spec with the numbers of its model written out, so that workers need not know presets or
// defaults, and with the end of the decay as it was fixed, so that a newcomer computes with the
// same learning rates after stop.steps has changed.
std::string builtin_text(const api::TrainingSpec& training,
                         std::optional<std::int64_t> decay_steps) {
  Value value = api::encode(training);
  value.at("optimizer").at("schedule").set("decaySteps", decay_steps.value_or(training.stop.steps));
  if (!training.model) return json::dump(value);
  if (const auto numbers = api::explicit_model(*training.model); numbers.ok()) {
    Value& model = value.at("model");
    model.erase("preset");
    const Value all = api::encode(*numbers);
    for (const auto& [name, number] : all.members()) model.set(name, number);
  }
  return json::dump(value);
}

// What a script does not say itself.
std::string script_text(const api::TrainingSpec& training) {
  const Value all = api::encode(training);
  Value value = Value::object();
  for (const char* field : {"batch", "stop", "seed", "evaluateEvery", "checkpoint"})
    value.set(field, all[field]);
  value.at("batch").erase("sequenceLength");
  return json::dump(value);
}

}  // namespace

bool can_be_led(const api::TrainingJob& job) {
  if (job.unreadable.empty()) return true;
  const auto& members = job.unreadable_members;
  return !members.empty() && std::ranges::none_of(kToldMembers, [&](const char* name) {
    return members.contains(name);
  });
}

void put_training(const api::TrainingJob& job, coordinator::Wish& wish) {
  const auto& training = job.spec.training;
  wish.is_stateless = !training.has_value();
  if (!training) {
    wish.micro_batches = static_cast<std::uint32_t>(job.spec.gpus.max);
    return;
  }
  wish.training = job.spec.runtime == api::Runtime::kPytorch
                      ? script_text(*training)
                      : builtin_text(*training, job.status.decay_steps);
  wish.stop_steps = static_cast<std::uint64_t>(training->stop.steps);
  wish.micro_batches = static_cast<std::uint32_t>(training->batch.micro_batches());
}

double tokens_of_a_step(const api::TrainingJob& job, std::int64_t steps_done,
                        std::int64_t tokens_done) {
  if (job.spec.training && job.spec.runtime == api::Runtime::kBuiltin) {
    const api::BatchSpec& batch = job.spec.training->batch;
    return static_cast<double>(batch.global) * batch.sequence_length;
  }
  return steps_done > 0 ? static_cast<double>(tokens_done) / static_cast<double>(steps_done) : 0;
}

}  // namespace rubato::control
