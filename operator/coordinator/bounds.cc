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

double bounded(double value, double most) {
  return std::isfinite(value) ? std::clamp(value, -most, most) : 0;
}

}  // namespace

std::string bounded(std::string_view text) { return clipped(text, kTextMax); }

double bounded_seconds(double seconds) { return std::max(0.0, bounded(seconds, kSecondsMost)); }

void bound(wire::WorkerStanding& standing) {
  standing.set_loss(bounded(standing.loss(), kLossMost));
  standing.set_validation_loss(bounded(standing.validation_loss(), kLossMost));
  standing.set_step_seconds(bounded_seconds(standing.step_seconds()));
  standing.set_compute_seconds(bounded_seconds(standing.compute_seconds()));
  standing.set_seq(std::min(standing.seq(), kCountMost));
  standing.set_step(std::min(standing.step(), kCountMost));
  standing.set_tokens(std::min(standing.tokens(), kCountMost));
  standing.set_checkpoint_step(std::min(standing.checkpoint_step(), kCountMost));
  standing.set_validation_step(std::min(standing.validation_step(), kCountMost));
  standing.set_checkpoints_skipped(std::min(standing.checkpoints_skipped(), kCountMost));
  if (standing.fingerprint().size() > kTextMax) standing.clear_fingerprint();
  if (standing.cpu().size() > kTextMax) standing.clear_cpu();
  if (standing.phase_name().size() > kTextMax) standing.clear_phase_name();
  if (standing.listen().host().size() > kTextMax) standing.clear_listen();
}

}  // namespace rubato::coordinator
