// The words of enums in a snapshot, in the order of the enumerators.
#pragma once

#include <array>

namespace rubato::sched {

inline constexpr std::array<const char*, 3> kShapeWords{"any", "powersOfTwo", "wholeNodes"};
inline constexpr std::array<const char*, 2> kTopologyWords{"preferred", "required"};
inline constexpr std::array<const char*, 3> kPreemptsWords{"nobody", "ownQueue", "anyQueue"};

}  // namespace rubato::sched
