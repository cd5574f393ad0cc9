// Enumerations of the API and their words in JSON. `words(E{})` lists them in order of value, so
// name_of() and parse<E>() need no table of their own.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace rubato::api {

// How many GPUs a job may be given, beside min, max and perPod.
enum class GpuShape { kAny, kPowersOfTwo, kWholeNodes };
constexpr auto words(GpuShape) {
  return std::array<std::string_view, 3>{"any", "powersOfTwo", "wholeNodes"};
}

enum class TopologyMode { kPreferred, kRequired };
constexpr auto words(TopologyMode) {
  return std::array<std::string_view, 2>{"preferred", "required"};
}

enum class Runtime { kBuiltin, kPytorch, kTorchrun, kCommand };
constexpr auto words(Runtime) {
  return std::array<std::string_view, 4>{"builtin", "pytorch", "torchrun", "command"};
}

enum class ModelFamily { kGpt2, kLlama };
constexpr auto words(ModelFamily) { return std::array<std::string_view, 2>{"gpt2", "llama"}; }

enum class OptimizerName { kAdamW };
constexpr auto words(OptimizerName) { return std::array<std::string_view, 1>{"adamw"}; }

enum class Decay { kCosine, kConstant };
constexpr auto words(Decay) { return std::array<std::string_view, 2>{"cosine", "constant"}; }

enum class Precision { kF32, kBf16 };
constexpr auto words(Precision) { return std::array<std::string_view, 2>{"f32", "bf16"}; }

enum class Reduce { kExact, kFast };
constexpr auto words(Reduce) { return std::array<std::string_view, 2>{"exact", "fast"}; }

// Whom a queue's jobs of higher priority may preempt.
enum class Preemption { kNever, kWithinQueue, kAnyQueue };
constexpr auto words(Preemption) {
  return std::array<std::string_view, 3>{"never", "withinQueue", "anyQueue"};
}

// Of a policy that needs what workers cannot do.
enum class MissingMechanism { kRefuse, kDegrade };
constexpr auto words(MissingMechanism) {
  return std::array<std::string_view, 2>{"Refuse", "Degrade"};
}

enum class ConditionStatus { kTrue, kFalse, kUnknown };
constexpr auto words(ConditionStatus) {
  return std::array<std::string_view, 3>{"True", "False", "Unknown"};
}

template <class E>
concept Worded = requires(E e) { words(e).size(); };

template <Worded E>
constexpr std::string_view name_of(E value) {
  return words(value)[static_cast<std::size_t>(value)];
}

template <Worded E>
constexpr std::optional<E> parse(std::string_view word) {
  constexpr auto kAll = words(E{});
  for (std::size_t i = 0; i < kAll.size(); ++i)
    if (kAll[i] == word) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace rubato::api
