// some_of: the first of many texts, for a sentence that people read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace rubato {

// "a, b, c"; of more than `most`: "a, b and 3 more".
inline std::string some_of(std::span<const std::string> all, std::size_t most,
                           std::string_view separator = ", ") {
  const std::span<const std::string> shown = all.first(std::min(all.size(), most));
  std::string text = fmt::format("{}", fmt::join(shown, separator));
  if (shown.size() < all.size()) text += fmt::format(" and {} more", all.size() - shown.size());
  return text;
}

}  // namespace rubato
