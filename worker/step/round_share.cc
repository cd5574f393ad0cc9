#include "worker/step/round_share.h"

#include "common/check.h"

#include <algorithm>

namespace rubato::worker {

void RoundShare::reset(std::uint64_t seq) {
  seq_ = seq;
  held_.clear();
  sum_ = {};
}

void RoundShare::add(std::uint32_t micro, const MicroPart& part) {
  CHECK(held_.insert(micro).second);  // a micro-batch counts once
  sum_.loss_q += part.loss_q;
  sum_.sample_digest += part.sample_digest;
  sum_.non_finite = sum_.non_finite || part.non_finite;
  sum_.ends = sum_.ends || part.ends;
  sum_.squared_norm += part.squared_norm;
}

bool RoundShare::fits(const std::vector<wire::MicroRange>& ranges) const {
  return std::ranges::all_of(held_, [&](std::uint32_t micro) {
    return std::ranges::any_of(ranges, [&](const wire::MicroRange& range) {
      return range.begin <= micro && micro < range.end;
    });
  });
}

std::vector<wire::MicroRange> RoundShare::ranges() const {
  std::vector<wire::MicroRange> ranges;
  for (const std::uint32_t micro : held_) {
    if (!ranges.empty() && ranges.back().end == micro) {
      ++ranges.back().end;
    } else {
      ranges.push_back({micro, micro + 1});
    }
  }
  return ranges;
}

}  // namespace rubato::worker
