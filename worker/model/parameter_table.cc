#include "worker/model/parameter_table.h"

#include "worker/backend/digest.h"

#include <algorithm>

namespace rubato::worker {

const Parameter& ParameterTable::add(std::string name, std::vector<std::int64_t> shape, bool decays,
                                     std::int64_t padded_rows) {
  CHECK(!shape.empty());
  std::int64_t row = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  const std::int64_t rows = std::max(shape[0], padded_rows);
  CHECK(shape[0] > 0 && row > 0);

  Parameter entry;
  entry.name = std::move(name);
  entry.count = shape[0] * row;
  entry.shape = std::move(shape);
  entry.offset = flat_count_;
  entry.slot = (rows * row + kBlockElements - 1) / kBlockElements * kBlockElements;
  entry.decays = decays;
  flat_count_ += entry.slot;
  entries_.push_back(std::move(entry));
  return entries_.back();
}

const Parameter* ParameterTable::find(std::string_view name) const {
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Parameter& entry) { return entry.name == name; });
  return at == entries_.end() ? nullptr : &*at;
}

std::int64_t ParameterTable::parameter_count() const {
  std::int64_t sum = 0;
  for (const Parameter& entry : entries_) sum += entry.count;
  return sum;
}

std::int64_t ParameterTable::largest_count() const {
  return entries_.empty() ? 0 : std::ranges::max_element(entries_, {}, &Parameter::count)->count;
}

std::uint64_t ParameterTable::digest() const {
  Digest digest;
  for (const Parameter& entry : entries_) {
    digest.add(entry.name);
    for (const std::int64_t extent : entry.shape)
      digest.add_u64(static_cast<std::uint64_t>(extent));
    digest.add_u64(static_cast<std::uint64_t>(entry.offset));
    digest.add_u64(entry.decays ? 1 : 0);
  }
  return digest.value();
}

}  // namespace rubato::worker
