#include "operator/coordinator/gpu_time.h"

#include "common/check.h"

#include <algorithm>
#include <utility>

namespace rubato::coordinator {

GpuSeconds& GpuSeconds::operator+=(const GpuSeconds& other) {
  useful += other.useful;
  queue += other.queue;
  rescale += other.rescale;
  failure += other.failure;
  checkpoint += other.checkpoint;
  straggling += other.straggling;
  return *this;
}

void GpuTime::advance(MonoTime now) {
  const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  const double waited = use_ == GpuUse::kUseful ? waiting_ * members_ * seconds : 0;
  of(use_) += members_ * seconds - waited;
  total_.straggling += waited;
  if (use_ == GpuUse::kUseful) open_useful_ += members_ * seconds - waited;
  open_straggling_ += waited;
  total_.failure += lost_ * seconds;
  of(use_ == GpuUse::kUseful ? GpuUse::kRescale : use_) += (held_ - members_ - lost_) * seconds;
}

void GpuTime::set(std::uint32_t held, std::uint32_t members, std::uint32_t lost, GpuUse use,
                  double waiting) {
  held_ = held;
  members_ = std::min(members, held);
  lost_ = std::min(lost, held_ - members_);
  use_ = use;
  waiting_ = std::clamp(waiting, 0.0, 1.0);
}

void GpuTime::commit() { open_useful_ = open_straggling_ = 0; }

void GpuTime::lose_open_step() {
  total_.useful -= open_useful_;
  total_.straggling -= open_straggling_;
  total_.failure += open_useful_ + open_straggling_;
  commit();
}

void GpuTime::move(GpuUse from, GpuUse to, double gpu_seconds) {
  const double moved = std::clamp(gpu_seconds, 0.0, of(from));
  of(from) -= moved;
  of(to) += moved;
}

double& GpuTime::of(GpuUse use) {
  switch (use) {
    case GpuUse::kUseful:
      return total_.useful;
    case GpuUse::kQueue:
      return total_.queue;
    case GpuUse::kRescale:
      return total_.rescale;
    case GpuUse::kFailure:
      return total_.failure;
    case GpuUse::kCheckpoint:
      return total_.checkpoint;
  }
  check_failed(__FILE__, __LINE__, "GpuUse");
}

}  // namespace rubato::coordinator
