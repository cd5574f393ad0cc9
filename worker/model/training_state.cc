#include "worker/model/training_state.h"

#include "worker/backend/digest.h"

#include <algorithm>

namespace rubato::worker {

namespace {

// Through the host in pieces, so that a device need not give up all its bytes at once.
Status add_bytes(Device& device, Stream& stream, ConstBuffer buffer, Digest& digest) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::vector<std::byte> host;
  for (std::int64_t first = 0; first < buffer.count(); first += kPiece) {
    const ConstBuffer piece = buffer.slice(first, std::min(kPiece, buffer.count() - first));
    host.resize(piece.bytes());
    device.copy_to_host(stream, host.data(), piece);
    TRY_OK(stream.synchronize());
    digest.add(host.data(), host.size());
  }
  return ok();
}

}  // namespace

Result<TrainingState> TrainingState::create(Device& device, const ParameterTable& table) {
  TrainingState state;
  const std::int64_t n = table.flat_count();
  TRY(state.arena_, device.allocate(3 * Arena::bytes_for(DType::kF32, n) +
                                    Arena::bytes_for(DType::kI32, table.block_count())));
  state.parameters_ = state.arena_.take(DType::kF32, n);
  state.exp_avg_ = state.arena_.take(DType::kF32, n);
  state.exp_avg_sq_ = state.arena_.take(DType::kF32, n);
  state.exponents_ = state.arena_.take(DType::kI32, table.block_count());
  return state;
}

std::vector<StateSection> TrainingState::sections() const {
  return {{"parameters", parameters_},
          {"exp_avg", exp_avg_},
          {"exp_avg_sq", exp_avg_sq_},
          {"exponents", exponents_}};
}

Result<std::uint64_t> TrainingState::weight_digest(Device& device, Stream& stream) const {
  Digest digest;
  TRY_OK(add_bytes(device, stream, parameters_, digest));
  return digest.value();
}

Result<std::uint64_t> TrainingState::digest(Device& device, Stream& stream) const {
  Digest digest;
  digest.add_u64(static_cast<std::uint64_t>(step_));
  for (const StateSection& section : sections())
    TRY_OK(add_bytes(device, stream, section.buffer, digest));
  return digest.value();
}

}  // namespace rubato::worker
