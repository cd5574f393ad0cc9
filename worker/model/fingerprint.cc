#include "worker/model/fingerprint.h"

#include "common/rng.h"
#include "worker/backend/digest.h"

#include <bit>

namespace rubato::worker {

namespace {

constexpr std::uint64_t kProbeSeed = 20261121;
constexpr std::int64_t kProbeMicroBatches = 8;

std::vector<std::int32_t> probe_tokens(const Model& model) {
  const ModelConfig& config = model.config();
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(model.micro_batch() * (config.sequence_length + 1)));
  Rng rng(kProbeSeed);
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(config.vocabulary)));
  return tokens;
}

}  // namespace

Result<std::string> numerics_fingerprint(Device& device, Stream& stream, Model& model,
                                         const OptimizerConfig& optimizer, int numerics) {
  const ParameterTable& table = model.table();
  TRY(TrainingState state, TrainingState::create(device, table));
  TRY(ExactSum sum, ExactSum::create(device, table, kProbeMicroBatches, numerics));
  TRY(AdamW adamw, AdamW::create(optimizer, device, table));
  TRY(Arena arena, device.allocate(Arena::bytes_for(DType::kF32, table.flat_count())));
  const Buffer gradient = arena.take(DType::kF32, table.flat_count());
  return numerics_fingerprint(device, stream, model, optimizer, {state, sum, adamw, gradient});
}

Result<std::string> numerics_fingerprint(Device& device, Stream& stream, Model& model,
                                         const OptimizerConfig& optimizer,
                                         const ProbeMemory& memory) {
  const ParameterTable& table = model.table();
  const int numerics = memory.sum.numerics();
  TrainingState& state = memory.state;
  AdamW& adamw = memory.optimizer;
  const Buffer gradient = memory.gradient;
  TRY(ExactSum sum, memory.sum.sharing_memory(table, kProbeMicroBatches));
  CHECK_EQ(state.step(), 0);

  Digest digest(static_cast<std::uint64_t>(numerics));
  digest.add(device.fingerprint()).add_u64(table.digest());
  for (std::int64_t step = 0; step < 64; ++step)
    digest.add_u64(std::bit_cast<std::uint64_t>(learning_rate_at(optimizer, step * step * step)));

  TRY_OK(model.init(kProbeSeed, device, stream, state.parameters()));
  TRY(const MicroLoss loss,
      model.forward_backward(stream, probe_tokens(model), state.parameters(), gradient));
  digest.add_u64(std::bit_cast<std::uint32_t>(loss.mean));
  TRY_OK(sum.calibrate(stream, gradient, state.exponents()));
  sum.clear(stream);
  sum.add(stream, 0, 0, gradient, state.exponents());
  sum.mean(stream, sum.accumulators(), state.exponents(), gradient);
  TRY(const double norm, adamw.norm(stream, gradient));
  digest.add_u64(std::bit_cast<std::uint64_t>(norm));
  TRY_OK(sum.advance(stream, sum.accumulators(), gradient, state.exponents()));
  adamw.apply(stream, gradient, norm, state);
  TRY(const std::uint64_t after, state.digest(device, stream));
  digest.add_u64(after);
  for (const StateSection& section : state.sections()) device.memset(stream, section.buffer, 0);
  state.set_step(0);
  memory.sum.clear(stream);
  TRY_OK(stream.synchronize());
  return std::to_string(numerics) + "-" + device.fingerprint() + "-" + to_hex(digest.value());
}

}  // namespace rubato::worker
