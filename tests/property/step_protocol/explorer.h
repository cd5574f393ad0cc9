// Walks every reachable state of a Model, breadth first, so that a violation comes with a shortest
// story of how to get there.
#pragma once

#include "tests/property/step_protocol/model.h"

namespace rubato::protocol_model {

struct Exploration {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::size_t complete = 0;
  std::string violation;  // empty: none
  std::string story;      // one transition a line
};

// Stops at the first violation. `limit`: more states than this is a violation in itself.
Exploration explore(const Model& model, std::size_t limit);

}  // namespace rubato::protocol_model
