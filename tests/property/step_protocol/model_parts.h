// What the files of the model share: sets of workers and micro-batches as bits, and where
// transitions go.
#pragma once

#include "tests/property/step_protocol/model.h"

#include <bit>
#include <string>
#include <utility>
#include <vector>

namespace rubato::protocol_model {

constexpr int kNewcomer = 2;  // the worker that joins or leaves in the planned variants
constexpr int kDonor = 0;

inline Mask bit(int i) { return static_cast<Mask>(1 << i); }
inline bool has(Mask mask, int i) { return (mask & bit(i)) != 0; }
inline int ones(Mask mask) { return std::popcount(mask); }

inline Byte as_byte(int v) { return static_cast<Byte>(v); }

inline Mask mask_of(const std::vector<wire::MicroRange>& ranges) {
  Mask mask = 0;
  for (const auto& range : ranges)
    for (auto m = range.begin; m < range.end; ++m) mask |= bit(static_cast<int>(m));
  return mask;
}

inline Mask even_share(Mask members, int i) {
  const auto rank = static_cast<std::uint32_t>(ones(members & static_cast<Mask>(bit(i) - 1)));
  return mask_of({wire::even_share(rank, static_cast<std::uint32_t>(ones(members)), kMicro)});
}

struct Model::Sink {
  const Model& model;
  std::vector<Step>& steps;
  std::vector<std::string>& violations;
  void add(std::string name, State next) {
    model.forget_the_unreadable(next);
    steps.push_back({std::move(name), next});
  }
  void broken(std::string what) { violations.push_back(std::move(what)); }
};

}  // namespace rubato::protocol_model
