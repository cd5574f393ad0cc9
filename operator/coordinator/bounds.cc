#include "operator/coordinator/bounds.h"

#include "common/words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace rubato::coordinator {
namespace {

constexpr std::size_t kTextMax = 1024;            // bytes
constexpr std::uint64_t kCountMost = 1ull << 53;  // what JSON's numbers hold
constexpr double kSecondsMost = 1e6;
constexpr double kLossMost = 1e9;
constexpr double kTokensMost = 1e15;

double at_most(double value, double most) {
  return std::isfinite(value) ? std::clamp(value, -most, most) : 0;
}

}  // namespace

std::string bounded(std::string_view text) { return clipped(text, kTextMax); }

double bounded_seconds(double seconds) { return std::max(0.0, at_most(seconds, kSecondsMost)); }

void bound(wire::WorkerStanding& status) {
  status.set_loss(at_most(status.loss(), kLossMost));
  status.set_validation_loss(at_most(status.validation_loss(), kLossMost));
  status.set_step_seconds(bounded_seconds(status.step_seconds()));
  status.set_compute_seconds(bounded_seconds(status.compute_seconds()));
  status.set_noise_scale(std::max(0.0, at_most(status.noise_scale(), kTokensMost)));
  status.set_seq(std::min(status.seq(), kCountMost));
  status.set_step(std::min(status.step(), kCountMost));
  status.set_tokens(std::min(status.tokens(), kCountMost));
  status.set_checkpoint_step(std::min(status.checkpoint_step(), kCountMost));
  status.set_validation_step(std::min(status.validation_step(), kCountMost));
  status.set_checkpoints_skipped(std::min(status.checkpoints_skipped(), kCountMost));
  if (status.fingerprint().size() > kTextMax) status.clear_fingerprint();
  if (status.cpu().size() > kTextMax) status.clear_cpu();
  if (status.phase_name().size() > kTextMax) status.clear_phase_name();
  if (status.collective().size() > kTextMax) status.clear_collective();
  if (status.listen().host().size() > kTextMax) status.clear_listen();
}

}  // namespace rubato::coordinator
