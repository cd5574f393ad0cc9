#include "worker/model/exact_sum.h"

#include "common/rng.h"
#include "common/words.h"

#include <algorithm>
#include <span>
#include <utility>

namespace rubato::worker {

namespace {

// Exponents are kept where 2^(F - e) and 2^(e - F) are ordinary floats for every F.
constexpr std::int32_t kExponentMin = -90;
constexpr std::int32_t kExponentMax = 100;
constexpr std::int32_t kDecay = 2;        // bits that a block may sink per step
constexpr std::int32_t kBelowTensor = 4;  // bits that a block may lie under its tensor's largest
constexpr int kHeadroom = 4;              // bits that contributions may grow from step to step
constexpr int kGuardShiftNearest = 12;
constexpr int kGuardShiftMin = 4;

constexpr std::uint64_t kDitherKey = 0xd1b54a32d192ed03;       // so that no other hash of the step
constexpr std::uint64_t kPermutationKey = 0x8cb92ba72f3d8dd7;  // has the same values

int ceil_log2(std::int64_t x) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < x) ++bits;
  return bits;
}

std::int64_t chunks_of(std::int64_t count) {
  return (count + kNormChunkElements - 1) / kNormChunkElements;
}

// Of chunks, each with a weight of its own.
std::uint64_t weighed(std::span<const std::int64_t> chunks) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    sum += (mix64(i) | 1) * static_cast<std::uint64_t>(chunks[i]);
  return sum;
}

// The lower of both, where they are even in number; kZeroExponent: no tensor has a gradient.
std::int32_t median_of_used(std::vector<std::int32_t> tops) {
  std::erase(tops, Kernels::kZeroExponent);
  if (tops.empty()) return Kernels::kZeroExponent;
  const auto middle = tops.begin() + static_cast<std::ptrdiff_t>((tops.size() - 1) / 2);
  std::ranges::nth_element(tops, middle);
  return *middle;
}

}  // namespace

Result<ExactSum> ExactSum::create(Device& device, const ParameterTable& table,
                                  std::int64_t micro_batches, int numerics) {
  TRY(ExactSum sum, without_memory(device, table, micro_batches, numerics));
  TRY(sum.arena_, device.allocate(Arena::bytes_for(DType::kI32, sum.accumulator_count()) +
                                  Arena::bytes_for(DType::kI32, sum.block_count_) +
                                  Arena::bytes_for(DType::kI64, 2 * sum.weighed_count())));
  sum.accumulators_ = sum.arena_.take(DType::kI32, sum.accumulator_count());
  sum.found_ = sum.arena_.take(DType::kI32, sum.block_count_);
  sum.weighed_ = sum.arena_.take(DType::kI64, 2 * sum.weighed_count());
  return sum;
}

Result<ExactSum> ExactSum::sharing_memory(const ParameterTable& table,
                                          std::int64_t micro_batches) const {
  TRY(ExactSum sum, without_memory(*device_, table, micro_batches, numerics_));
  CHECK(sum.flat_count_ == flat_count_ && sum.block_count_ == block_count_);
  sum.accumulators_ = accumulators_;
  sum.found_ = found_;
  sum.weighed_ = weighed_;
  return sum;
}

Result<ExactSum> ExactSum::without_memory(Device& device, const ParameterTable& table,
                                          std::int64_t micro_batches, int numerics) {
  if (!knows_numerics(numerics))
    return Error(Code::kInvalid, "numerics version " + std::to_string(numerics) +
                                     ": this program knows " +
                                     std::to_string(kNumericsVersionOldest) + " to " +
                                     std::to_string(kNumericsVersion));
  ExactSum sum;
  sum.numerics_ = numerics;
  const std::int64_t most = sum.rounds_to_nearest() ? kMicroBatchesMaxNearest : kMicroBatchesMax;
  if (micro_batches < 1 || micro_batches > most)
    return Error(Code::kInvalid, "an exact sum of " + counted(micro_batches, "micro-batch") +
                                     ": must lie in 1.." + std::to_string(most));
  sum.device_ = &device;
  sum.flat_count_ = table.flat_count();
  sum.block_count_ = table.block_count();
  sum.micro_batches_ = micro_batches;
  const int bits = ceil_log2(micro_batches);
  if (sum.rounds_to_nearest()) {
    sum.fraction_bits_ = 28 - (bits + 1) / 2;
    sum.guard_shift_ = kGuardShiftNearest;
  } else {
    sum.fraction_bits_ = 31 - kHeadroom;
    sum.guard_shift_ = std::max(kGuardShiftMin, bits);
    sum.dealt_.resize(static_cast<std::size_t>(micro_batches));
  }
  for (const Parameter& entry : table.entries())
    sum.tensor_ends_.push_back((entry.offset + entry.slot) / kBlockElements);
  const auto blocks = static_cast<std::size_t>(sum.block_count_);
  sum.host_found_.resize(blocks);
  sum.host_exponents_.resize(blocks);
  sum.host_guards_.resize(blocks);
  sum.host_weighed_.resize(static_cast<std::size_t>(2 * sum.weighed_count()));
  return sum;
}

Status ExactSum::find_by_gradient(Stream& stream, ConstBuffer gradient) {
  device_->kernels().block_exponents(stream, gradient, found_);
  device_->copy_to_host(stream, host_found_.data(), found_);
  TRY_OK(stream.synchronize());
  // M such gradients at most add up to M times one.
  const std::int32_t shift = ceil_log2(micro_batches_);
  for (std::int32_t& found : host_found_)
    if (found != Kernels::kZeroExponent) found += shift;
  return ok();
}

Status ExactSum::find_by_guards(Stream& stream, ConstBuffer reduced) {
  copy_guards(stream, reduced);
  TRY_OK(stream.synchronize());
  for (std::size_t i = 0; i < host_found_.size(); ++i) {
    const auto guard = static_cast<std::uint32_t>(host_guards_[i]);
    host_found_[i] = guard == 0 ? Kernels::kZeroExponent
                                : host_exponents_[i] + guard_shift_ - fraction_bits_ +
                                      ceil_log2(static_cast<std::int64_t>(guard));
  }
  return ok();
}

Status ExactSum::calibrate(Stream& stream, ConstBuffer micro_gradient, Buffer exponents) {
  TRY_OK(find_by_gradient(stream, micro_gradient));
  const std::vector<std::int32_t> tops = tops_of_tensors();
  const std::int32_t unused = keeps_unused() ? median_of_used(tops) : Kernels::kZeroExponent;
  std::size_t block = 0;
  for (std::size_t tensor = 0; tensor < tops.size(); ++tensor) {
    const std::int32_t top = tops[tensor];
    const std::int32_t least = top == Kernels::kZeroExponent ? unused : top - kBelowTensor;
    for (; block < static_cast<std::size_t>(tensor_ends_[tensor]); ++block)
      host_exponents_[block] =
          std::clamp(std::max(host_found_[block], least), kExponentMin, kExponentMax);
  }
  device_->copy_to_device(stream, exponents, host_exponents_.data());
  return stream.synchronize();
}

std::vector<std::int32_t> ExactSum::tops_of_tensors() const {
  std::vector<std::int32_t> tops;
  tops.reserve(tensor_ends_.size());
  std::size_t block = 0;
  for (const std::int64_t end : tensor_ends_) {
    std::int32_t top = Kernels::kZeroExponent;
    for (; block < static_cast<std::size_t>(end); ++block) top = std::max(top, host_found_[block]);
    tops.push_back(top);
  }
  return tops;
}

void ExactSum::clear(Stream& stream) {
  device_->memset(stream, accumulators_, 0);
  device_->memset(stream, weighed_, 0);  // copied as a whole, whoever has given nothing
}

void ExactSum::add(Stream& stream, std::int64_t step, std::int64_t micro,
                   ConstBuffer micro_gradient, ConstBuffer exponents) {
  const Buffer sums = accumulators_.slice(0, flat_count_);
  const Buffer guards = accumulators_.slice(flat_count_, block_count_);
  if (rounds_to_nearest()) {
    device_->kernels().quantise_add(stream, fraction_bits_, guard_shift_, exponents, micro_gradient,
                                    sums, guards);
    return;
  }
  const Dither dither{.key = mix64(static_cast<std::uint64_t>(step) ^ kDitherKey),
                      .offset = dither_offset(step, micro)};
  device_->kernels().dither_add(stream, fraction_bits_, guard_shift_, dither, exponents,
                                micro_gradient, sums, guards);
}

std::uint32_t ExactSum::dither_offset(std::int64_t step, std::int64_t micro) {
  CHECK(step >= 0 && micro >= 0 && micro < micro_batches_);
  if (dealt_step_ != step) {
    const std::size_t count = dealt_.size();
    for (std::size_t k = 0; k < count; ++k)
      dealt_[k] = static_cast<std::uint32_t>((std::uint64_t{k} << 32) / count);
    const std::uint64_t key = mix64(static_cast<std::uint64_t>(step) ^ kPermutationKey);
    for (std::size_t k = count; k > 1; --k)  // Fisher and Yates
      std::swap(dealt_[k - 1], dealt_[((mix64(key + k) >> 32) * k) >> 32]);
    dealt_step_ = step;
  }
  return dealt_[static_cast<std::size_t>(micro)];
}

void ExactSum::merge(Stream& stream, ConstBuffer from, Buffer to) {
  CHECK_EQ(from.count(), accumulator_count());
  device_->kernels().add_i32(stream, from, to);
}

std::int64_t ExactSum::element_chunks() const { return chunks_of(flat_count_); }

std::int64_t ExactSum::weighed_count() const { return element_chunks() + chunks_of(block_count_); }

void ExactSum::weigh(Stream& stream, ConstBuffer sums, std::int64_t place) {
  CHECK_EQ(sums.count(), accumulator_count());
  const Buffer out = weighed_.slice(place * weighed_count(), weighed_count());
  device_->kernels().weighted_sums(stream, sums.slice(0, flat_count_),
                                   out.slice(0, element_chunks()));
  device_->kernels().weighted_sums(stream, sums.slice(flat_count_, block_count_),
                                   out.slice(element_chunks(), chunks_of(block_count_)));
}

void ExactSum::weigh_given(Stream& stream) { weigh(stream, accumulators_, 0); }

void ExactSum::weigh_reduced(Stream& stream, ConstBuffer reduced) {
  weigh(stream, reduced, 1);
  device_->copy_to_host(stream, host_weighed_.data(), weighed_);
}

SumChecksum ExactSum::checksum(std::size_t place) const {
  const std::size_t all = host_weighed_.size() / 2;
  const auto own = std::span(host_weighed_).subspan(place * all, all);
  const auto elements = static_cast<std::size_t>(element_chunks());
  return {weighed(own.first(elements)), static_cast<std::uint32_t>(weighed(own.subspan(elements)))};
}

void ExactSum::copy_guards(Stream& stream, ConstBuffer reduced) {
  CHECK_EQ(reduced.count(), accumulator_count());
  device_->copy_to_host(stream, host_guards_.data(), reduced.slice(flat_count_, block_count_));
}

bool ExactSum::is_over(std::int32_t guard) const {
  return static_cast<std::uint32_t>(guard) >= std::uint32_t{1} << (31 - guard_shift_);
}

Result<bool> ExactSum::overflows(Stream& stream, ConstBuffer reduced) {
  copy_guards(stream, reduced);
  TRY_OK(stream.synchronize());
  return std::any_of(host_guards_.begin(), host_guards_.end(),
                     [this](std::int32_t guard) { return is_over(guard); });
}

Status ExactSum::raise(Stream& stream, ConstBuffer reduced, int attempt, Buffer exponents) {
  copy_guards(stream, reduced);
  device_->copy_to_host(stream, host_exponents_.data(), exponents);
  TRY_OK(stream.synchronize());
  const std::int32_t by = 4 << std::clamp(attempt, 0, 3);
  for (std::size_t i = 0; i < host_exponents_.size(); ++i)
    if (is_over(host_guards_[i]))
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

Status ExactSum::advance(Stream& stream, ConstBuffer reduced, ConstBuffer gradient,
                         Buffer exponents) {
  device_->copy_to_host(stream, host_exponents_.data(), exponents);  // waited for with the next
  TRY_OK(rounds_to_nearest() ? find_by_gradient(stream, gradient)
                             : find_by_guards(stream, reduced));
  const std::vector<std::int32_t> tops = tops_of_tensors();
  std::size_t block = 0;
  for (std::size_t tensor = 0; tensor < tops.size(); ++tensor) {
    const bool is_kept = keeps_unused() && tops[tensor] == Kernels::kZeroExponent;
    for (; block < static_cast<std::size_t>(tensor_ends_[tensor]); ++block) {
      if (is_kept) continue;
      const std::int32_t least =
          std::max(host_exponents_[block] - kDecay, tops[tensor] - kBelowTensor);
      host_exponents_[block] =
          std::clamp(std::max(host_found_[block], least), kExponentMin, kExponentMax);
    }
  }
  device_->copy_to_device(stream, exponents, host_exponents_.data());
  return stream.synchronize();
}

}  // namespace rubato::worker
