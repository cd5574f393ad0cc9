// Exposition: the Prometheus text format (0.0.4) of series that are computed when they are asked
// for, and the description of a metric that catalogues and pages are made of. Costs one append a
// line and keeps nothing but the text; for handles that are bumped, see metrics.h.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace rubato {

enum class MetricType { kCounter, kGauge, kHistogram };
std::string_view name_of(MetricType type);

// One row of a catalogue. The names and helps are literals of the program.
struct MetricInfo {
  std::string_view name;
  MetricType type = MetricType::kGauge;
  std::vector<std::string_view> labels;  // in the order in which values are given
  std::string_view unit;                 // "seconds", "bytes", "jobs" …; "" for an info or a state
  std::string_view help;                 // one sentence
};

class Exposition {
 public:
  // Begins a family: its samples follow at once, and no family is begun twice. `info` must live
  // until the next one begins.
  void family(const MetricInfo& info);
  // A sample of the family that was begun last; CHECKs that there is a value for each label.
  void sample(std::initializer_list<std::string_view> label_values, double value);

  std::size_t samples() const { return samples_; }
  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  const MetricInfo* family_ = nullptr;
  std::size_t samples_ = 0;
  std::string text_;
};

}  // namespace rubato
