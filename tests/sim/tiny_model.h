// TinyModel: a model of some hundred parameters whose gradients are cheap, deep enough to show any
// sample that counted twice, late or not at all, and now and then so large that a block overflows.
// Its work takes virtual time.
#pragma once

#include "common/executor.h"
#include "worker/model/model.h"

#include <functional>
#include <memory>

namespace rubato::sim {

constexpr std::int64_t kTinyVocabulary = 24;
constexpr std::int32_t kTinySpike =
    23;  // a row that begins with it has a gradient 4096 times as large

// `work` is called once a micro-batch: takes the time that computing it would.
std::unique_ptr<worker::Model> make_tiny_model(const worker::ModelConfig& config,
                                               std::int64_t micro_batch, worker::Device& device,
                                               std::function<void()> work);

}  // namespace rubato::sim
