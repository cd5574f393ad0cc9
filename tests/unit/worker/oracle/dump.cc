// Runs a model on given weights and tokens, and writes everything that can be compared with
// PyTorch: logits, loss, every gradient, and a short training run. Driven by oracle.py.
//
//   worker_oracle_dump DIR MICRO MICRO_BATCHES STEPS ISA|bf16|cuda-bf16
// DIR holds config.json, the weights (worker/checkpoint/weight_files.h), tokens.safetensors (I32
// "tokens": [STEPS, MICRO_BATCHES, MICRO, T + 1]); out.safetensors and a checkpoint are written
// there.
#include "common/json.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/exact_sum.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>

namespace rubato::worker {
namespace {

struct Output {
  std::deque<std::vector<float>> kept;
  std::vector<TensorView> tensors;

  void add(const std::string& name, std::vector<std::int64_t> shape, std::vector<float> values) {
    kept.push_back(std::move(values));
    tensors.push_back(
        {name, "F32", std::move(shape), kept.back().data(), kept.back().size() * sizeof(float)});
  }
  Status add_flat(const std::string& prefix, const ParameterTable& table, Device& device,
                  Stream& stream, ConstBuffer flat) {
    std::vector<float> values(static_cast<std::size_t>(flat.count()));
    device.copy_to_host(stream, values.data(), flat);
    TRY_OK(stream.synchronize());
    for (const Parameter& entry : table.entries()) {
      const float* from = values.data() + entry.offset;
      add(prefix + entry.name, entry.shape, {from, from + entry.count});
    }
    return ok();
  }
};

OptimizerConfig optimizer(std::int64_t steps) {
  return {.learning_rate = 2e-3,
          .min_learning_rate = 2e-4,
          .warmup_steps = std::min<std::int64_t>(5, steps),
          .decay_steps = steps,
          .weight_decay = 0.1,
          .clip_norm = 1.0};
}

Status run(const std::string& directory, std::int64_t micro, std::int64_t micro_batches,
           std::int64_t steps, const std::string& how) {
  PosixFileSystem files;
  TRY(const std::string text, read_text(files, directory + "/config.json", 1 << 20));
  TRY(const json::Value json, json::parse(text));
  TRY(const ModelConfig config, from_huggingface_config(json));
  const bool is_cuda = how == "cuda-bf16", is_bf16 = is_cuda || how == "bf16";
  TRY(auto device, open_device({.kind = is_cuda ? "cuda" : "cpu",
                                .isa = is_bf16 ? "auto" : how,
                                .precision = is_bf16 ? Precision::kBf16 : Precision::kF32}));
  const auto stream = device->make_stream();
  TRY(auto model, make_model(config, micro, *device));
  const ParameterTable& table = model->table();
  TRY(TrainingState state, TrainingState::create(*device, table));
  TRY(Arena arena, device->allocate(Arena::bytes_for(DType::kF32, table.flat_count())));
  const Buffer gradient = arena.take(DType::kF32, table.flat_count());
  TRY_OK(load_parameters(files, directory, config, *device, *stream, table, state.parameters()));
  TRY(const Safetensors file, Safetensors::open(files, directory + "/tokens.safetensors"));
  const TensorEntry* entry = file.find("tokens");
  if (entry == nullptr) return Error(Code::kInvalid, "no tokens");
  std::vector<std::byte> all(entry->size);
  TRY_OK(file.read(*entry, all));
  const auto row = static_cast<std::size_t>(config.sequence_length + 1);
  const std::size_t piece = static_cast<std::size_t>(micro) * row;
  const auto tokens_of = [&](std::int64_t step, std::int64_t m) {
    std::vector<std::int32_t> tokens(piece);
    std::memcpy(tokens.data(),
                all.data() + static_cast<std::size_t>(step * micro_batches + m) * piece * 4,
                piece * 4);
    return tokens;
  };

  Output out;
  const std::vector<std::int32_t> first = tokens_of(0, 0);
  std::vector<float> logits;
  TRY_OK(model->logits(*stream, std::span(first).first(row - 1), state.parameters(), logits));
  out.add("logits", {config.sequence_length, config.vocabulary}, logits);
  TRY(const MicroLoss loss, model->forward_backward(*stream, first, state.parameters(), gradient));
  TRY(const MicroLoss again, model->evaluate(*stream, first, state.parameters()));
  out.add("loss", {2}, {loss.mean, again.mean});
  TRY_OK(out.add_flat("gradient.", table, *device, *stream, gradient));

  TRY(ExactSum sum, ExactSum::create(*device, table, micro_batches));
  TRY(AdamW adamw, AdamW::create(optimizer(steps), *device, table));
  TRY_OK(sum.calibrate(*stream, gradient, state.exponents()));
  std::vector<float> losses, norms;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int attempt = 0;; ++attempt) {
      if (attempt == ExactSum::kRedosMax) return Error(Code::kInternal, "overflows for ever");
      std::int64_t fixed = 0;
      sum.clear(*stream);
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        TRY(const MicroLoss part,
            model->forward_backward(*stream, tokens_of(step, m), state.parameters(), gradient));
        fixed += part.fixed;
        sum.add(*stream, step, m, gradient, state.exponents());
      }
      TRY(const bool overflows, sum.overflows(*stream, sum.accumulators()));
      if (!overflows) {
        losses.push_back(static_cast<float>(step_loss(fixed, micro_batches)));
        break;
      }
      TRY_OK(sum.raise(*stream, sum.accumulators(), attempt, state.exponents()));
    }
    sum.mean(*stream, sum.accumulators(), state.exponents(), gradient);
    TRY(const double norm, adamw.norm(*stream, gradient));
    norms.push_back(static_cast<float>(norm));
    TRY_OK(sum.advance(*stream, sum.accumulators(), gradient, state.exponents()));
    adamw.apply(*stream, gradient, norm, state);
  }
  out.add("losses", {steps}, losses);
  out.add("norms", {steps}, norms);
  TRY_OK(out.add_flat("final.", table, *device, *stream, state.parameters()));
  std::vector<StepRecord> records;
  for (std::int64_t step = 0; step < steps; ++step)
    records.push_back(
        make_step_record(step, static_cast<double>(losses[static_cast<std::size_t>(step)]), 0, 0));
  CheckpointInfo info;
  info.model = config;
  info.optimizer = optimizer(steps);
  TRY_OK(CheckpointStore(files, directory + "/checkpoints", 1)
             .save(*device, *stream, table, state, info, records));
  TRY_OK(write_safetensors(files, directory + "/out.safetensors", out.tensors, {}));
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: worker_oracle_dump DIR MICRO MICRO_BATCHES STEPS ISA|bf16|cuda-bf16\n";
    return 2;
  }
  const auto done = rubato::worker::run(argv[1], std::atoll(argv[2]), std::atoll(argv[3]),
                                        std::atoll(argv[4]), argv[5]);
  if (done.ok()) return 0;
  std::cerr << done.error().to_string() << "\n";
  return 1;
}
