// A small job on one device, computed the way the step engine does: gradients of micro-batches, an
// exact sum, AdamW. Groups of micro-batches stand for workers.
#pragma once

#include "common/rng.h"
#include "worker/backend/digest.h"
#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"
#include "worker/testing/deferred_device.h"

#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker::testing {

template <class T>
T take(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.error().to_string();
  return std::move(result).value();
}

inline ModelConfig tiny_config() {
  return {.layers = 2, .heads = 2, .hidden = 32, .vocabulary = 61, .sequence_length = 16};
}

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_config();
  config.family = "llama";
  config.kv_heads = 1;
  config.mlp_hidden = 48;
  config.rope_scaling = {.factor = 4, .original_length = 8};
  config.has_tied_head = false;
  return config;
}
// For tests of both families.
class EachFamily : public ::testing::TestWithParam<ModelConfig> {};
inline std::string family_of(const ::testing::TestParamInfo<ModelConfig>& info) {
  return info.param.family;
}
#define RUBATO_EACH_FAMILY(suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Families, suite, ::testing::Values(tiny_config(), tiny_llama()), \
                           family_of)

class SmallJob {
 public:
  SmallJob(ModelConfig config, std::int64_t micro, std::int64_t micro_batches,
           OptimizerConfig optimizer)
      : device(take(open_test_device())),
        stream(device->make_stream()),
        model(take(make_model(config, micro, *device))),
        state(take(TrainingState::create(*device, model->table()))),
        adamw(take(AdamW::create(optimizer, *device, model->table()))),
        micro_batches_(micro_batches),
        arena_(take(device->allocate(
            Arena::bytes_for(DType::kF32, model->table().flat_count()) +
            2 * Arena::bytes_for(DType::kI32,
                                 model->table().flat_count() + model->table().block_count())))) {
    const std::int64_t flat = model->table().flat_count();
    gradient = arena_.take(DType::kF32, flat);
    reduced = arena_.take(DType::kI32, flat + model->table().block_count());
    std::vector<float> start(static_cast<std::size_t>(flat));
    model->init(7, start);
    device->copy_to_device(*stream, state.parameters(), start.data());
    EXPECT_TRUE(stream->synchronize().ok());
  }

  // Text with structure, so that there is something to learn: a noisy walk over the vocabulary.
  std::vector<std::int32_t> tokens(std::int64_t step, std::int64_t m) const {
    const ModelConfig& c = model->config();
    Rng rng(static_cast<std::uint64_t>(step * 1000 + m));
    std::vector<std::int32_t> out;
    for (std::int64_t row = 0; row < model->micro_batch(); ++row) {
      auto at = rng.below(static_cast<std::uint64_t>(c.vocabulary));
      for (std::int64_t i = 0; i <= c.sequence_length; ++i) {
        out.push_back(static_cast<std::int32_t>(at));
        at = (at * 3 + 1 + rng.below(2)) % static_cast<std::uint64_t>(c.vocabulary);
      }
    }
    return out;
  }

  // One step, its micro-batches dealt to workers as `groups` says, in that order. Returns the loss.
  double step(const std::vector<std::vector<std::int64_t>>& groups) {
    const std::int64_t now = state.step();
    std::vector<ExactSum> sums;
    for (std::size_t g = 0; g < groups.size(); ++g)
      sums.push_back(take(ExactSum::create(*device, model->table(), micro_batches_, numerics)));
    if (now == 0) {
      take(model->forward_backward(*stream, tokens(0, 0), state.parameters(), gradient));
      EXPECT_TRUE(sums[0].calibrate(*stream, gradient, state.exponents()).ok());
    }
    std::int64_t loss = 0;
    for (int attempt = 0;; ++attempt) {
      EXPECT_LT(attempt, ExactSum::kRedosMax);
      loss = 0;
      device->memset(*stream, reduced, 0);
      for (std::size_t g = 0; g < groups.size(); ++g) {
        sums[g].clear(*stream);
        for (const std::int64_t m : groups[g]) {
          const MicroLoss micro =
              take(model->forward_backward(*stream, tokens(now, m), state.parameters(), gradient));
          EXPECT_TRUE(micro.is_finite);
          loss += micro.fixed;
          sums[g].add(*stream, now, m, gradient, state.exponents());
        }
        sums[g].merge(*stream, sums[g].accumulators(), reduced);
      }
      if (!take(sums[0].overflows(*stream, reduced))) break;
      redos += 1;
      EXPECT_TRUE(sums[0].raise(*stream, reduced, attempt, state.exponents()).ok());
    }
    sums[0].mean(*stream, reduced, state.exponents(), gradient);
    const double norm = take(adamw.norm(*stream, gradient));
    EXPECT_TRUE(sums[0].advance(*stream, reduced, gradient, state.exponents()).ok());
    adamw.apply(*stream, gradient, norm, state);
    return step_loss(loss, micro_batches_);
  }

  std::vector<std::vector<std::int64_t>> one_worker() const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(micro_batches_));
    std::iota(all.begin(), all.end(), 0);
    return {all};
  }
  std::uint64_t hash() { return take(state.digest(*device, *stream)); }
  std::vector<float> read(ConstBuffer buffer) {
    std::vector<float> out(static_cast<std::size_t>(buffer.count()));
    device->copy_to_host(*stream, out.data(), buffer);
    EXPECT_TRUE(stream->synchronize().ok());
    return out;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Model> model;
  TrainingState state;
  AdamW adamw;
  Buffer gradient;
  Buffer reduced;
  int redos = 0;
  int numerics = kNumericsVersion;

 private:
  std::int64_t micro_batches_;
  Arena arena_;
};

}  // namespace rubato::worker::testing
