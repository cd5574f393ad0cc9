#include "worker/pytorch/request_queue.h"

#include "common/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rubato::worker {

namespace {

constexpr std::size_t kTensorsMost = 1u << 20;

using json::Value;

Value address_of(const void* memory) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(memory));
}

Value ids_of(const MicroBatch& micro_batch) {
  Value ids = Value::array();
  for (const std::int64_t sample : micro_batch.samples) ids.push_back(sample);
  return ids;
}

// JSON has no word for what is not finite.
double number_in(const Value& value) {
  return value.double_or(std::numeric_limits<double>::quiet_NaN());
}

Result<TensorGroup> group_in(const std::string& name) {
  if (name == "trained") return TensorGroup::kTrained;
  if (name == "model") return TensorGroup::kModel;
  if (name == "optimizer") return TensorGroup::kOptimizer;
  return Error(Code::kInvalid, "no group of tensors is called " + name);
}

Error of_script(const Value& reply) {
  Error error(Code::kInvalid, reply["error"].string_or(""));
  return error.set_reason(reply["reason"].string_or("ProgramFailed"));
}

}  // namespace

std::optional<std::string> RequestQueue::next(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  be(clock_.now(), true, kAnswerMost);
  changed_.notify_all();
  changed_.wait_for(lock, limit, [&] { return request_ || !end_.empty(); });
  const bool hears_end = !request_ && !end_.empty();
  be(clock_.now(), false, hears_end ? kBodyMost : kAnswerMost);
  if (request_) return std::exchange(request_, std::nullopt);
  if (!hears_end) return std::nullopt;
  has_heard_end_ = true;
  changed_.notify_all();
  return end_;
}

void RequestQueue::reply(const std::string& text) {
  const std::lock_guard lock(mutex_);
  be(clock_.now(), false, kBodyMost);
  reply_ = text;
  changed_.notify_all();
}

void RequestQueue::be(MonoTime now, bool is_waiting, Duration most) {
  if (!is_waiting_ && busy_since_ != MonoTime{}) busy_ += std::min(now - busy_since_, busy_most_);
  is_waiting_ = is_waiting;
  busy_since_ = now;
  busy_most_ = most;
}

std::uint64_t RequestQueue::signs_of_life() {
  const std::lock_guard lock(mutex_);
  Duration busy = busy_;
  if (!is_waiting_ && busy_since_ != MonoTime{})
    busy += std::min(clock_.now() - busy_since_, busy_most_);
  return static_cast<std::uint64_t>(busy / 1s);
}

void RequestQueue::stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

void RequestQueue::end(bool finished, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!end_.empty()) return;
  end_ = json::dump(Value::object({{"kind", "end"}, {"finished", finished}, {"reason", reason}}));
  changed_.notify_all();
}

// No deadline: a micro-batch takes as long as it takes, and the coordinator sees by the standings
// that it does. What ends the wait otherwise is the end of the script, which stops the queue.
Result<Value> RequestQueue::ask(const Value& request) {
  std::unique_lock lock(mutex_);
  if (!end_.empty()) return Error(Code::kCancelled, "the script's loop is over");
  reply_.reset();
  request_ = json::dump(request);
  changed_.notify_all();
  changed_.wait(lock, [&] { return reply_ || is_stopped_; });
  if (!reply_) return Error(Code::kCancelled, "the script has ended");
  auto reply = json::parse(*std::exchange(reply_, std::nullopt));
  if (!reply.ok()) return reply.error().in("a reply of the script");
  if (!(*reply)["error"].is_null()) return of_script(*reply);
  return reply;
}

void RequestQueue::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_waiting_ || is_stopped_ || has_heard_end_; });
}

bool RequestQueue::is_over() {
  const std::lock_guard lock(mutex_);
  return is_stopped_ || !end_.empty();
}

Result<TorchSetup> RequestQueue::configure(const std::string& training) {
  TRY(const Value spec, json::parse(training));
  TRY(const Value said, ask(Value::object({{"kind", "configure"}, {"training", spec}})));
  TorchSetup setup;
  setup.micro_batch = said["micro_batch"].int_or(0);
  setup.micro_batches = said["micro_batches"].int_or(0);
  setup.samples = said["samples"].int_or(0);
  setup.tokens_per_step = static_cast<std::uint64_t>(said["tokens_per_step"].int_or(0));
  setup.seed = static_cast<std::uint64_t>(said["seed"].int_or(0));
  setup.validation_micro_batches =
      static_cast<std::uint32_t>(said["validation_micro_batches"].int_or(0));
  setup.max_grad_norm = said["max_grad_norm"].double_or(0);
  setup.ahead =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(said["ahead"].int_or(0), 0, kAheadMost));
  setup.extra_bytes = static_cast<std::size_t>(said["extra_bytes"].int_or(0));
  setup.fingerprint = said["fingerprint"].string_or("");
  setup.model_config = said["config"].string_or("");
  if (said["tensors"].size() > kTensorsMost)
    return Error(Code::kInvalid, "the script has too many tensors");
  for (const Value& each : said["tensors"].items()) {
    TorchTensor tensor{.name = each["name"].string_or(""), .dtype = each["dtype"].string_or("")};
    TRY(tensor.group, group_in(each["group"].string_or("")));
    tensor.in_state_dict = each["in_state_dict"].bool_or(true);
    for (const Value& size : each["shape"].items()) tensor.shape.push_back(size.int_or(-1));
    setup.tensors.push_back(std::move(tensor));
  }
  return setup;
}

Status RequestQueue::bind(const TorchMemory& memory) {
  Value tensors = Value::array();
  for (const std::byte* tensor : memory.tensors) tensors.push_back(address_of(tensor));
  Value gradients = Value::array();
  for (const float* gradient : memory.gradients) gradients.push_back(address_of(gradient));
  TRY_OK(ask(Value::object({{"kind", "bind"},
                            {"tensors", std::move(tensors)},
                            {"gradients", std::move(gradients)},
                            {"gradient", address_of(memory.gradient.data())},
                            {"gradient_count", static_cast<std::int64_t>(memory.gradient.size())},
                            {"extra", address_of(memory.extra)}})));
  return ok();
}

Status RequestQueue::init() {
  TRY_OK(ask(Value::object({{"kind", "init"}})));
  return ok();
}

Status RequestQueue::loaded(std::uint64_t step) {
  TRY_OK(ask(Value::object({{"kind", "loaded"}, {"step", step}})));
  return ok();
}

Result<MicroBatchLoss> RequestQueue::compute(const MicroBatch& micro_batch,
                                             std::span<const MicroBatch> ahead) {
  Value next = Value::array();
  for (const MicroBatch& each : ahead)
    next.push_back(
        Value::object({{"step", each.step}, {"micro", each.micro}, {"ids", ids_of(each)}}));
  TRY(const Value said, ask(Value::object({{"kind", "compute"},
                                           {"step", micro_batch.step},
                                           {"micro", micro_batch.micro},
                                           {"ids", ids_of(micro_batch)},
                                           {"ahead", std::move(next)}})));
  return MicroBatchLoss{number_in(said["loss"]), said["weight"].int_or(1),
                        said["ends"].bool_or(false)};
}

Result<double> RequestQueue::apply(std::uint64_t step, float factor, double loss, double norm,
                                   MemberPlace place) {
  TRY(const Value said, ask(Value::object({{"kind", "apply"},
                                           {"step", step},
                                           {"factor", static_cast<double>(factor)},
                                           {"loss", loss},
                                           {"norm", norm},
                                           {"rank", place.rank},
                                           {"world", place.members},
                                           {"stop_steps", place.stop_steps}})));
  return said["learning_rate"].double_or(0);
}

Result<double> RequestQueue::validate(std::uint32_t micro) {
  TRY(const Value said, ask(Value::object({{"kind", "validate"}, {"micro", micro}})));
  return number_in(said["loss"]);
}

}  // namespace rubato::worker
