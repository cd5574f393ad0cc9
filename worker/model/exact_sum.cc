#include "worker/model/exact_sum.h"

#include <algorithm>

namespace rubato::worker {

namespace {

// Exponents are kept where 2^(F - e) and 2^(e - F) are ordinary floats for every F.
constexpr std::int32_t kExponentMin = -90;
constexpr std::int32_t kExponentMax = 100;
constexpr std::int32_t kDecay = 2;        // bits that a block may sink per step
constexpr std::int32_t kBelowTensor = 4;  // bits that a block may lie under its tensor's largest

int ceil_log2(std::int64_t x) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < x) ++bits;
  return bits;
}

}  // namespace

Result<ExactSum> ExactSum::create(Device& device, const ParameterTable& table,
                                  std::int64_t micro_batches) {
  if (micro_batches < 1 || micro_batches > kMicroBatchesMax)
    return Error(Code::kInvalid, "an exact sum of " + std::to_string(micro_batches) +
                                     " micro-batches: must lie in 1.." +
                                     std::to_string(kMicroBatchesMax));
  ExactSum sum;
  sum.device_ = &device;
  sum.flat_count_ = table.flat_count();
  sum.block_count_ = table.block_count();
  sum.micro_batches_ = micro_batches;
  sum.headroom_ = 3 + (ceil_log2(micro_batches) + 1) / 2;
  TRY(sum.arena_, device.allocate(Arena::bytes_for(DType::kI32, sum.accumulator_count()) +
                                  Arena::bytes_for(DType::kI32, sum.block_count_)));
  sum.accumulators_ = sum.arena_.take(DType::kI32, sum.accumulator_count());
  sum.found_ = sum.arena_.take(DType::kI32, sum.block_count_);
  for (const Parameter& entry : table.entries())
    sum.tensor_ends_.push_back((entry.offset + entry.slot) / kBlockElements);
  const auto blocks = static_cast<std::size_t>(sum.block_count_);
  sum.host_found_.resize(blocks);
  sum.host_exponents_.resize(blocks);
  sum.host_guards_.resize(blocks);
  return sum;
}

Status ExactSum::block_exponents(Stream& stream, ConstBuffer x) {
  device_->kernels().block_exponents(stream, x, found_);
  device_->copy_to_host(stream, host_found_.data(), found_);
  return stream.synchronize();
}

Status ExactSum::calibrate(Stream& stream, ConstBuffer micro_gradient, Buffer exponents) {
  TRY_OK(block_exponents(stream, micro_gradient));
  // M such gradients at most add up to M times one.
  const std::int32_t shift = ceil_log2(micro_batches_);
  std::size_t block = 0;
  for (const std::int64_t end : tensor_ends_) {
    const std::size_t first = block;
    std::int32_t top = Kernels::kZeroExponent;
    for (; block < static_cast<std::size_t>(end); ++block) top = std::max(top, host_found_[block]);
    for (std::size_t i = first; i < block; ++i)
      host_exponents_[i] = std::clamp(std::max(host_found_[i], top - kBelowTensor) + shift,
                                      kExponentMin, kExponentMax);
  }
  device_->copy_to_device(stream, exponents, host_exponents_.data());
  return stream.synchronize();
}

void ExactSum::clear(Stream& stream) { device_->memset(stream, accumulators_, 0); }

void ExactSum::add(Stream& stream, ConstBuffer micro_gradient, ConstBuffer exponents) {
  device_->kernels().quantise_add(stream, fraction_bits(), kGuardShift, exponents, micro_gradient,
                                  accumulators_.slice(0, flat_count_),
                                  accumulators_.slice(flat_count_, block_count_));
}

void ExactSum::merge(Stream& stream, ConstBuffer from, Buffer to) {
  CHECK_EQ(from.count(), accumulator_count());
  device_->kernels().add_i32(stream, from, to);
}

Result<bool> ExactSum::overflows(Stream& stream, ConstBuffer reduced) {
  CHECK_EQ(reduced.count(), accumulator_count());
  device_->copy_to_host(stream, host_guards_.data(), reduced.slice(flat_count_, block_count_));
  TRY_OK(stream.synchronize());
  return std::any_of(host_guards_.begin(), host_guards_.end(), [](std::int32_t guard) {
    return guard >= (std::int32_t{1} << (31 - kGuardShift));
  });
}

Status ExactSum::raise(Stream& stream, ConstBuffer reduced, int attempt, Buffer exponents) {
  device_->copy_to_host(stream, host_guards_.data(), reduced.slice(flat_count_, block_count_));
  device_->copy_to_host(stream, host_exponents_.data(), exponents);
  TRY_OK(stream.synchronize());
  const std::int32_t by = 4 << std::clamp(attempt, 0, 3);
  for (std::size_t i = 0; i < host_exponents_.size(); ++i)
    if (host_guards_[i] >= (std::int32_t{1} << (31 - kGuardShift)))
      host_exponents_[i] = std::min(host_exponents_[i] + by, kExponentMax);
  device_->copy_to_device(stream, exponents, host_exponents_.data());
  return stream.synchronize();
}

void ExactSum::mean(Stream& stream, ConstBuffer reduced, ConstBuffer exponents, Buffer gradient) {
  CHECK_EQ(reduced.count(), accumulator_count());
  const float factor = 1.0f / static_cast<float>(micro_batches_);
  device_->kernels().dequantise(stream, fraction_bits(), factor, exponents,
                                reduced.slice(0, flat_count_), gradient);
}

Status ExactSum::advance(Stream& stream, ConstBuffer gradient, Buffer exponents) {
  TRY_OK(block_exponents(stream, gradient));
  device_->copy_to_host(stream, host_exponents_.data(), exponents);
  TRY_OK(stream.synchronize());
  // The exponents speak of the sum, the gradient is the mean: 2^shift covers the factor M.
  const std::int32_t shift = ceil_log2(micro_batches_);
  std::size_t block = 0;
  for (const std::int64_t end : tensor_ends_) {
    const std::size_t first = block;
    std::int32_t top = Kernels::kZeroExponent;
    for (; block < static_cast<std::size_t>(end); ++block) top = std::max(top, host_found_[block]);
    for (std::size_t i = first; i < block; ++i) {
      const std::int32_t least = std::max(host_exponents_[i] - kDecay, top - kBelowTensor + shift);
      host_exponents_[i] =
          std::clamp(std::max(host_found_[i] + shift, least), kExponentMin, kExponentMax);
    }
  }
  device_->copy_to_device(stream, exponents, host_exponents_.data());
  return stream.synchronize();
}

}  // namespace rubato::worker
